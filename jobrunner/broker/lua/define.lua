local periodics, seen, version = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- define: a worker publishes the periodic jobs it knows, with the time it did so.
-- KEYS  periodics: hash name → definition · seen: zset name → Unix ms · version: string, counts changes
-- ARGV  now_ms: Unix ms or '' · then name, definition, ...
-- reply how many were new or changed
-- include clock

local now = exact(read_clock(now_ms))
local changed = 0
for i = 2, #ARGV, 2 do
  if redis.call('HGET', periodics, ARGV[i]) ~= ARGV[i + 1] then
    redis.call('HSET', periodics, ARGV[i], ARGV[i + 1])
    changed = changed + 1
  end
  redis.call('ZADD', seen, now, ARGV[i])
end
if changed > 0 then redis.call('INCR', version) end
return changed
