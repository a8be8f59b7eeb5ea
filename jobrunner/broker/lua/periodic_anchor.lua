local periodic = unpack(KEYS)
local now_ms, expected, to, ahead_ms, epoch = unpack(ARGV)
-- periodic_anchor: moves the last tick of a periodic job back when it is from a clock that was ahead and is right
--       again.
-- KEYS  periodic: hash {last, epoch, ...}
-- ARGV  now_ms: Unix ms or '' · expected: `last` as the caller read it · to: Unix ms, the last tick from now on ·
--       ahead_ms: only when it is more than so far ahead of the clock · epoch: fencing number of the caller's lead
-- reply 'anchored', 'missed' (it changed meanwhile, or is not so far ahead) or 'fenced' (an older leader)
-- include numbers

local now = read_clock(now_ms)
local state = redis.call('HMGET', periodic, 'last', 'epoch')
if (tonumber(state[2]) or 0) > tonumber(epoch) then return 'fenced' end
local last = state[1] == expected and number(expected)
if not last or last <= now + tonumber(ahead_ms) or tonumber(to) > now + tonumber(ahead_ms) then return 'missed' end
redis.call('HSET', periodic, 'last', to, 'epoch', epoch)
return 'anchored'
