-- How long a queue keeps its history.
local AGE_OF_HISTORY_WITHOUT_AGE_MS = 604800000

-- What the settings `history_ms` and `history_max` say; nil without a history.
local function history_of(history_ms, history_max)
  local age, most = number(history_ms), number(history_max)
  if age or most then return {age = age or AGE_OF_HISTORY_WITHOUT_AGE_MS, most = most or 0} end
end

-- Remembers the time of the newest entry of history that was deleted.
local function note_trimmed(settings, newest)
  local known = number(redis.call('HGET', settings, 'history_trimmed'))
  if newest and not (known and known >= tonumber(newest)) then
    redis.call('HSET', settings, 'history_trimmed', newest)
  end
end

-- History: finished tasks of a queue that keeps them, by age and by number. `done` is outside the four sets and no
-- reserve reads it; index and hash of an entry end together, also when nobody looks after the queue again.
local function read_history()
  local set = redis.call('HMGET', settings, 'history_ms', 'history_max')
  return history_of(set[1], set[2])
end

-- How long the hash of a finished task stays: as its job says, or as long as history, whichever is longer.
local function keep_for(keep_ms, history)
  if not history then return keep_ms end
  return exact(math.max(tonumber(keep_ms), history.age))
end

-- `history_noted` and `history_trimmed` tell a reader who comes back whether entries went before it had read them.
-- An index that expired took all that was noted along.
local function note_done(ids, now, history)
  if #ids == 0 then return end
  local entries, ended = {}, exact(now)
  if redis.call('EXISTS', done) == 0 then note_trimmed(settings, redis.call('HGET', settings, 'history_noted')) end
  for n, id in ipairs(ids) do entries[2 * n - 1], entries[2 * n] = ended, id end
  call_sliced('ZADD', done, entries)
  redis.call('PEXPIRE', done, exact(history.age))
  redis.call('HSET', settings, 'history_noted', ended)
end

-- Finished without a report of its own: hashes stay as long as history, with nothing but the time.
local function retire(ids, now, history)
  for _, id in ipairs(ids) do
    redis.call('PEXPIRE', tasks .. id, exact(history.age))
    redis.call('HSET', tasks .. id, 'finished_at', exact(now))
  end
  note_done(ids, now, history)
end
