-- The step that ends a task of a flow writes an entry into the outbox of its tag; the relay delivers it to the joins
-- that wait for it. The field names outcome and addressees, so writing an entry twice changes nothing.
local function post(onward, outcome, result)
  if not onward or onward == '' or onward.err then return false end
  redis.call('HSET', outbox, outcome .. ':' .. onward, result)
  return true
end

-- Deletes the lock of a unique task if this task has it. `digest`: the task's field `lock`.
local function drop_lock(id, digest)
  local lock = digest and string.sub(tasks, 1, -6) .. 'unique:' .. digest
  if lock and string.match(redis.call('GET', lock) or '', ' (.+)$') == id then redis.call('UNLINK', lock) end
end

-- Totals by type, in addition to those of the queue; tasks without a type count only in the latter.
local types = string.sub(counters, 1, -9) .. 'types'

-- Limits the number of fields, as job names may be generated; further types count as `unknown`.
local MOST_TYPES = 1000

local function count_typed(type, outcome, by)
  if not type or type == '' then return end
  local field = type .. ' ' .. outcome
  local is_new = redis.call('HINCRBY', types, field, by) == tonumber(by)
  if is_new and redis.call('HLEN', types) > MOST_TYPES then
    redis.call('HDEL', types, field)
    redis.call('HINCRBY', types, 'unknown ' .. outcome, by)
  end
end

-- Counts one task in the totals of the queue and of its type.
local function count_one(type, outcome)
  redis.call('HINCRBY', counters, outcome, 1)
  count_typed(type, outcome, 1)
end

-- Only the hash of a finished task has a TTL, so the TTL marks it, whatever its fields. Most tasks succeed, return
-- nothing and are kept for the default `result_ttl`, and need no field at all: writing the time would cost a quarter of
-- their report, and the TTL gives it to the millisecond.
local function is_finished(key)
  return redis.call('PTTL', key) >= 0
end

-- Reads the hash of an entry in `done`: its TTL (ms), and its fields `keep_ms` and `type`. Returns nothing when the
-- hash is not that of the entry: it may have expired, and another task have the id by now, in this queue or in another
-- queue of the tag.
local function read_record(done, id)
  local left_ms = redis.call('PTTL', tasks .. id)
  if left_ms < 0 then return end
  local task = redis.pcall('HMGET', tasks .. id, 'queue', 'keep_ms', 'type')
  local queue = not task.err and task[1]
  if queue and string.match(queue, '[^/]*$') == string.sub(done, #tasks - 4, -6) then
    return left_ms, task[2], task[3]
  end
end

-- Whether the end of a task needs no field. The index of history has the time, as long as the hash does not outlive it.
-- A TTL runs by the server's clock, so `now` must be of that clock.
local function is_usual_end(keep_ms, outcome, result, history)
  if outcome ~= 'succeeded' or result ~= '' then return false end
  if history then return tonumber(keep_ms) <= history.age end
  return tonumber(keep_ms) == DEFAULT_RESULT_TTL_MS and now_ms == ''
end

-- The finish time of a task without a field for it, Unix ms as text; nil for an unfinished task. When the history was
-- shortened and no worker served the queue since, its index may expire before the hash, and the time with it: the
-- result is then now.
local function end_time_of(key, done, id)
  local left = redis.call('PTTL', key)
  if left < 0 then return end
  return redis.call('ZSCORE', done, id)
    or exact(math.floor(read_clock('')) + math.min(left - DEFAULT_RESULT_TTL_MS, 0))
end

-- Publishes the end of a task when a client waits for it. The user may lack the right to the channel, or the set be
-- damaged; a client without a message polls the task. Returns whether a client waits.
local function notify_waiters(id, outcome)
  if redis.pcall('ZREM', waiters, id) ~= 1 then return false end
  redis.pcall('PUBLISH', finished .. id, outcome)
  return true
end

-- Ends a cancelled task without a lease, after this many attempts. The caller removes it from its set. Returns whether
-- the outbox has an entry.
local function end_cancelled(id, type, onward, attempts, keep_ms, now)
  local key = tasks .. id
  redis.call('PEXPIRE', key, keep_ms)
  redis.call('HSET', key, 'outcome', 'cancelled', 'finished_at', exact(now), 'attempts', attempts)
  count_one(type, 'cancelled')
  return post(onward, 'cancelled', '')
end

-- The time that the hash of a task must stay when it ends other than by a worker's report. The enqueue of a job's task
-- leaves no note when jobrunner made the id: a repeated call finds the hash, as after a worker's report.
local function trace_ms(id, type)
  return type and type ~= '' and string.sub(id, 29, 29) == '-' and DEFAULT_RESULT_TTL_MS or 0
end

local WAITERS_KEEP_MS = '5000'

-- Ends a task: its hash is kept for a while with its outcome. Returns whether the caller must delete it instead. `run`,
-- `own_keep_ms`: values of fields that only history has, nil for none.
local function end_task(id, keep_ms, outcome, result, ended, has_waiters, is_usual, run, own_keep_ms)
  if has_waiters and notify_waiters(id, outcome) and keep_ms == '0' then keep_ms = WAITERS_KEEP_MS end
  if keep_ms == '0' then return true end
  local key = tasks .. id
  if redis.call('PEXPIRE', key, keep_ms) == 0 then return false end
  if run then redis.pcall('HSET', key, 'run_ms', run) end
  if own_keep_ms then redis.pcall('HSET', key, 'keep_ms', own_keep_ms) end
  if is_usual then return false end
  if outcome == 'succeeded' and result == '' then
    redis.pcall('HSET', key, 'finished_at', ended)
  else
    redis.pcall('HSET', key, 'finished_at', ended, 'outcome', outcome, 'result', result)
  end
  return false
end
