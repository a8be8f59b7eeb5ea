local joining = unpack(KEYS)
local now_ms, member, piece, result = unpack(ARGV)
-- join_arrive_part: stores a piece of a member's result that is too large for one call. The arrival follows the last
--       piece, with the count of pieces instead of the result.
-- KEYS  joining: hash
-- ARGV  now_ms: unused · member: its number · piece: its number (0 = first) · result: the piece
-- reply 'taken', 'noted' (no piece of it is needed) or 'gone' (no such join)
-- The same piece again changes nothing.

local state = redis.call('HMGET', joining, 'rule', 'ttl_ms', 'fired', 'gathered', 'results', 'm' .. member)
if not state[1] then return 'gone' end
redis.call('PEXPIRE', joining, state[2])
local before = state[6] and string.match(state[6], '^%a+')
if state[3] or state[4] or state[5] == '[]' or before and before ~= 'dead' then return 'noted' end
redis.call('HSET', joining, 'm' .. member .. '.' .. piece, result)
return 'taken'
