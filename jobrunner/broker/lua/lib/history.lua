-- The limits of history by the settings `history_ms` and `history_max`; nil without a history.
local function history_of(history_ms, history_max)
  local age, most = number(history_ms), number(history_max)
  if age or most then return {age = age or DEFAULT_HISTORY_MS, most = most or 0} end
end

-- Notes the time of the newest history entry that was deleted.
local function note_trimmed(settings, newest)
  local known = number(redis.call('HGET', settings, 'history_trimmed'))
  if newest and not (known and known >= tonumber(newest)) then
    redis.call('HSET', settings, 'history_trimmed', newest)
  end
end

-- History: finished tasks of a queue that keeps them, limited by age and number. No reserve reads `done`; index and
-- hash of an entry expire together, also when no worker serves the queue any more.
local function read_history()
  local set = redis.call('HMGET', settings, 'history_ms', 'history_max')
  return history_of(set[1], set[2])
end

-- The time that the hash of a finished task stays: its job's `result_ttl` or the age limit of history, whichever is
-- longer.
local function ttl_for(keep_ms, history)
  if not history then return keep_ms end
  return exact(math.max(tonumber(keep_ms), history.age))
end

-- The usual time that the hash of a finished task of this type stays.
local function usual_keep_ms(type) return type and type ~= '' and DEFAULT_RESULT_TTL_MS or 0 end

-- The value of the field `keep_ms`: the time that the hash stays when its entry may be trimmed earlier; nil for the
-- usual time.
local function own_keep_ms(keep_ms, type, history)
  if not history or tonumber(keep_ms) == usual_keep_ms(type) then return end
  if history.most > 0 or tonumber(keep_ms) > history.age then return keep_ms end
end

-- Returns the key of the hash of a trimmed entry if the hash is to be deleted now. A hash that its job keeps longer
-- gets that time as its TTL.
local function trim_record(id, ended, now)
  local left_ms, keep_ms, type = read_record(done, id)
  if not left_ms then return end
  local kept_ms = math.ceil(tonumber(ended) + (number(keep_ms) or usual_keep_ms(type)) - now)
  if kept_ms <= 0 then return tasks .. id end
  if kept_ms < left_ms then redis.call('PEXPIRE', tasks .. id, exact(kept_ms)) end
end

-- Reads the run times of tasks, in the order of their reports, after the first `reports` of them. Workers measure and
-- report them for queues with a history, as a prefetched task waits in the worker before it runs.
local function read_runs(words, ran, reports)
  for word in string.gmatch(words, '%S+') do
    reports = reports + 1
    ran[reports] = word ~= '-1' and word
  end
end

-- `history_noted` and `history_trimmed` show a returning reader whether it missed entries. When the whole index
-- expired, all noted entries were deleted.
local function add_to_history(ids, now, history)
  if #ids == 0 then return end
  local entries, ended = {}, exact(now)
  if redis.call('EXISTS', done) == 0 then note_trimmed(settings, redis.call('HGET', settings, 'history_noted')) end
  for n, id in ipairs(ids) do entries[2 * n - 1], entries[2 * n] = ended, id end
  call_sliced('ZADD', done, entries)
  redis.call('PEXPIRE', done, exact(history.age))
  redis.call('HSET', settings, 'history_noted', ended)
end

-- Ends tasks that succeed without a report; `types` has their types. The hash of a task stays as long as history and
-- its enqueue need it, with only the time added.
local function retire(ids, types, now, history)
  local doomed = {}
  for n, id in ipairs(ids) do
    local keep_ms = math.max(history and history.age or 0, trace_ms(id, types[n]))
    if keep_ms > 0 then
      redis.call('PEXPIRE', tasks .. id, exact(keep_ms))
      redis.call('HSET', tasks .. id, 'finished_at', exact(now))
    else
      doomed[#doomed + 1] = tasks .. id
    end
  end
  unlink(doomed)
  if history then add_to_history(ids, now, history) end
end
