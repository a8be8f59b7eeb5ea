local joining, collected, outbox = unpack(KEYS)
local now_ms, outcome = unpack(ARGV)
-- join_abandon: ends a join that has not fired, so it never will; the joins after it are notified of this outcome.
-- KEYS  joining: hash · collected: hash, the results of its members · outbox: hash
-- ARGV  now_ms: unused · outcome: 'cancelled'
-- reply 'posted' (the outbox has an entry), 'noted' (nothing waits for it), 'fired' (before) or 'gone'
-- include task_end

local state = redis.call('HMGET', joining, 'rule', 'fired', 'f:then')
if not state[1] then return 'gone' end
if state[2] then return 'fired' end
redis.call('HSET', joining, 'fired', outcome)
redis.call('UNLINK', collected)
return post(state[3], outcome, '') and 'posted' or 'noted'
