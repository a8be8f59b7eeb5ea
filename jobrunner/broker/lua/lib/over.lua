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
