local periodics, seen = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- define: a worker publishes the periodic jobs it knows, with the time it did so.
-- KEYS  periodics: hash name → definition · seen: zset name → Unix ms
-- ARGV  now_ms: Unix ms or '' · then name, definition, ...
-- reply how many were new
-- include clock

local now = exact(read_clock(now_ms))
local new = 0
for i = 2, #ARGV, 2 do
  new = new + redis.call('HSET', periodics, ARGV[i], ARGV[i + 1])
  redis.call('ZADD', seen, now, ARGV[i])
end
return new
