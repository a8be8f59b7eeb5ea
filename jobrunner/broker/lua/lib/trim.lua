local SLICE = 500

-- Deletes a bounded slice of what stands in a set since `before` or longer, and beyond that of the oldest when there
-- are more than `most` (0 = any number), index and hash together. Returns how many, and the score of the newest.
local function trim(set, before, most)
  local all = redis.call('ZCARD', set)
  if all == 0 then return 0 end
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', exact(before), 'LIMIT', 0, SLICE)
  local over = all - #old - most
  if most > 0 and over > 0 then old = redis.call('ZRANGE', set, 0, math.min(#old + over, SLICE) - 1) end
  if #old == 0 then return 0 end
  local newest = redis.call('ZSCORE', set, old[#old])
  redis.call('ZREMRANGEBYRANK', set, 0, #old - 1)
  for n, id in ipairs(old) do old[n] = tasks .. id end
  redis.call('UNLINK', unpack(old))
  return #old, newest
end
