local joining, collected = unpack(KEYS)
local now_ms = unpack(ARGV)
-- join_pass_on: all joins that wait for the results of a large group have them, so the collected results are deleted.
-- KEYS  joining, collected: hashes
-- ARGV  now_ms: unused
-- reply 'passed', 'noted' (it was done before) or 'gone' (no such join)

local state = redis.call('HMGET', joining, 'rule', 'fired')
if not state[1] then return 'gone' end
if state[2] then return 'noted' end
redis.call('HSET', joining, 'fired', 'succeeded')
redis.call('UNLINK', collected)
return 'passed'
