local settings, wake = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- configure: sets and removes settings of a queue in one step and wakes a sleeper; the others stay as they are.
-- KEYS  settings: hash · wake: zset
-- ARGV  now_ms: Unix ms or '' · then field, value, ...; an empty value removes the field, '+N' means in N ms
-- reply 1
-- Works on a server that is full: one who pauses a queue there has a reason. Its first write frees nothing.
-- include clock wake

redis.call('HDEL', settings, '')
for i = 2, #ARGV, 2 do
  local value = ARGV[i + 1]
  if string.sub(value, 1, 1) == '+' then value = exact(read_clock(now_ms) + value) end
  if value == '' then
    redis.call('HDEL', settings, ARGV[i])
  else
    redis.call('HSET', settings, ARGV[i], value)
  end
end
wake_one(wake)
return 1
