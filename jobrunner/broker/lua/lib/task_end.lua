-- A task of a flow that ends writes an entry into the outbox of its tag, in the step that ends it; the relay takes it to
-- the joins that wait for it. The field names outcome and addressees, so an entry that is written twice is there once.
local function post(onward, outcome, result)
  if not onward or onward == '' or onward.err then return false end
  redis.call('HSET', outbox, outcome .. ':' .. onward, result)
  return true
end

-- Totals by type, beside those of the queue; what has no type is only in the latter.
local types = string.sub(counters, 1, -9) .. 'types'

-- Of so many types and outcomes; what is beyond counts as of type `unknown`, as a name may be made of anything.
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

-- One more, in the totals of the queue and of the type.
local function count_one(type, outcome)
  redis.call('HINCRBY', counters, outcome, 1)
  count_typed(type, outcome, 1)
end

-- Only the hash of a task that is over has an end of life, so that tells it, whatever its fields. Most tasks succeed,
-- return nothing and are kept for the usual time: theirs says nothing else. A field for the time would cost a quarter
-- of their report, and the end of life tells it to the millisecond.
local USUAL_KEEP_MS = '60000'

local function is_over(key)
  return redis.call('PTTL', key) >= 0
end

-- Whether an end is told without a field. The index of history has the time, as long as the hash does not outlive it;
-- an end of life goes by the server's clock, so that must have been read.
local function ends_as_usual(keep_ms, outcome, result, history)
  if outcome ~= 'succeeded' or result ~= '' then return false end
  if history then return tonumber(keep_ms) <= history.age end
  return keep_ms == USUAL_KEEP_MS and now_ms == ''
end

-- When a task was over that has no field for it, Unix ms as text; nil when it is not. Where history was made shorter
-- and nobody worked on the queue since, its index may be gone before the hash, and the time with it: then it is now.
local function over_since(key, done, id)
  local left = redis.call('PTTL', key)
  if left < 0 then return end
  return redis.call('ZSCORE', done, id)
    or exact(math.floor(read_clock('')) + math.min(left - tonumber(USUAL_KEEP_MS), 0))
end

-- Tells who waits for the end of a task, if anyone does. Returns whether.
local function tell_waiting(id, outcome)
  if redis.call('ZREM', waiters, id) == 0 then return false end
  redis.call('PUBLISH', finished .. id, outcome)
  return true
end

local AWAITED_KEEP_MS = '5000'

-- Ends a task: its hash is kept for a while with how it ended. Returns whether it is to be deleted at once instead.
local function end_one(id, keep_ms, outcome, result, ended, someone_waits, is_usual)
  if someone_waits and tell_waiting(id, outcome) and keep_ms == '0' then keep_ms = AWAITED_KEEP_MS end
  if keep_ms == '0' then return true end
  local key = tasks .. id
  if redis.call('PEXPIRE', key, keep_ms) == 0 or is_usual then return false end
  if outcome == 'succeeded' and result == '' then
    redis.pcall('HSET', key, 'finished_at', ended)
  else
    redis.pcall('HSET', key, 'finished_at', ended, 'outcome', outcome, 'result', result)
  end
  return false
end
