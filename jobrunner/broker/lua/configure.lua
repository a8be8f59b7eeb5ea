local settings, wake, declared = unpack(KEYS)
local now_ms, by = unpack(ARGV, 1, 2)
-- configure: sets and removes settings of a queue in one step and wakes a worker; the others stay as they are.
-- KEYS  settings: hash · wake: zset · declared: hash (see queue_declare.lua)
-- ARGV  now_ms: Unix ms or '' · by: who changes them by hand, or '' · then field, value, ...; an empty value removes
--       the field, '+N' means in N ms
-- reply 1
-- Works on a server that is full, where pausing a queue may help. Its first write frees nothing.
-- include numbers commands settings_change

redis.call('HDEL', declared, '')
for i = 3, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if by == '' or redis.call('HGET', declared, '=' .. field) == value then
    redis.call('HDEL', declared, 'by:' .. field)  -- back to what is declared: no change any more
  elseif (redis.call('HGET', settings, field) or '') ~= value then
    redis.call('HSET', declared, 'by:' .. field, exact(math.floor(read_clock(now_ms))) .. ' ' .. by)
  end
end
change_settings(settings, wake, ARGV, 3, now_ms)
return 1
