-- Totals by type, beside those of the queue; what has no type is only in the latter.
local types = string.sub(counters, 1, -9) .. 'types'

local function count_typed(type, outcome, by)
  if type and type ~= '' then redis.call('HINCRBY', types, type .. ' ' .. outcome, by) end
end

-- One more, in the totals of the queue and of the type.
local function count_one(type, outcome)
  redis.call('HINCRBY', counters, outcome, 1)
  count_typed(type, outcome, 1)
end
