local periodics, seen, version = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- define: a worker publishes the periodic jobs it knows, with the time it did so.
-- KEYS  periodics: hash name → definition · seen: zset name → Unix ms · version: string, counts changes
-- ARGV  now_ms: Unix ms or '' · then name, definition, ...
-- reply how many were new, changed, or known again after a while
-- Works on a server that is full: a worker that starts there makes room. Its first write frees nothing.
-- include clock

local FORGOTTEN_MS = 30000 -- less than the time after which a leader fires the job no more

local now = read_clock(now_ms)
local changed = 0
redis.call('ZREM', seen, '')
for i = 2, #ARGV, 2 do
  local last_seen = tonumber(redis.call('ZSCORE', seen, ARGV[i]) or 0)
  if redis.call('HGET', periodics, ARGV[i]) ~= ARGV[i + 1] or now - last_seen > FORGOTTEN_MS then
    redis.call('HSET', periodics, ARGV[i], ARGV[i + 1])
    changed = changed + 1
  end
  redis.call('ZADD', seen, exact(now), ARGV[i])
end
if changed > 0 then redis.call('INCR', version) end
return changed
