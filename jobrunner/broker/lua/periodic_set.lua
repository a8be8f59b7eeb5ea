local added, version = unpack(KEYS)
local now_ms, name, expected, definition = unpack(ARGV)
-- periodic_set: adds, replaces or removes a periodic job at run time, unless its definition was changed meanwhile.
-- KEYS  added: hash name → definition · version: string, counts changes, so that the leader reads the definitions
-- ARGV  now_ms: unused · name · expected: the definition that the caller read, '' = none · definition: the one from now
--       on, '' = none
-- reply 'set', or 'changed' (the definition is another one than expected)

if (redis.call('HGET', added, name) or '') ~= expected then return 'changed' end
if definition == '' then
  redis.call('HDEL', added, name)
else
  redis.call('HSET', added, name, definition)
end
redis.call('INCR', version)
return 'set'
