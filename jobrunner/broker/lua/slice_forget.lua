local transfers = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- slice_forget: a shard forgets gifts that have arrived, or never can.
-- KEYS  transfers: hash (see lib/slices.lua)
-- ARGV  now_ms: unused · then for each: shard, the gift as it was noted
-- reply how many it forgot; another gift to the same shard stays

local forgotten = 0
for i = 2, #ARGV, 2 do
  if redis.call('HGET', transfers, '>' .. ARGV[i]) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', transfers, '>' .. ARGV[i])
  end
end
return forgotten
