local joining = unpack(KEYS)
local now_ms, ttl_ms = unpack(ARGV, 1, 2)
-- join_prepare: nothing → a join that waits for its members. It always has a TTL.
-- KEYS  joining: hash {rule, total, ttl_ms, ...} (see join.py)
-- ARGV  now_ms: unused · ttl_ms: how long it waits for the next arrival · then field, value, ...
-- reply 1, or 0 when it exists (it is left as it is)

if redis.call('EXISTS', joining) == 1 then return 0 end
redis.call('HSET', joining, 'ttl_ms', ttl_ms, unpack(ARGV, 3))
redis.call('PEXPIRE', joining, ttl_ms)
return 1
