local settings, wake = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- configure: sets and removes settings of a queue in one step and wakes a sleeper; the others stay as they are.
-- KEYS  settings: hash · wake: zset
-- ARGV  now_ms: unused · then field, value, ...; an empty value removes the field
-- reply 1
-- include wake

for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', settings, ARGV[i])
  else
    redis.call('HSET', settings, ARGV[i], ARGV[i + 1])
  end
end
wake_one(wake)
return 1
