-- Only the hash of a task that is over has an end of life, so that tells it, whatever its fields. Most tasks succeed,
-- return nothing and are kept for the usual time: theirs says nothing else. A field for the time would cost a quarter
-- of their report, and the end of life tells it to the millisecond.
local USUAL_KEEP_MS = '60000'

local function is_over(key)
  return redis.call('PTTL', key) >= 0
end

-- Whether an end is told without a field. An end of life goes by the server's clock, so that must have been read.
local function ends_as_usual(keep_ms, outcome, result, history)
  return keep_ms == USUAL_KEEP_MS and outcome == 'succeeded' and result == '' and now_ms == '' and not history
end

-- When a task was over that has no field for it, Unix ms as text; nil when it is not.
local function over_since(key)
  local left = redis.call('PTTL', key)
  if left >= 0 then return exact(math.floor(read_clock('')) + left - USUAL_KEEP_MS) end
end
