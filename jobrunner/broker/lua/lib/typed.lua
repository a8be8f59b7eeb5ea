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
