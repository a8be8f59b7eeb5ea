local periodic = unpack(KEYS)
local now_ms, expected, to, ahead_ms, epoch, schedule = unpack(ARGV)
-- periodic_anchor: moves the last tick of a periodic job, when it is one of another schedule, or from a clock that was
--       ahead and is right again.
-- KEYS  periodic: hash {last, epoch, schedule, ...}
-- ARGV  now_ms: Unix ms or '' · expected: `last` as the caller read it · to: Unix ms, the last tick from now on ·
--       ahead_ms: only when it is more than so far ahead of the clock; '' in any case · epoch: fencing number of the
--       caller's lead · schedule: digest of the schedule that it is a tick of from now on
-- reply 'anchored', 'missed' (it changed meanwhile, or is not so far ahead) or 'fenced' (an older leader)
-- include numbers

local now = read_clock(now_ms)
local state = redis.call('HMGET', periodic, 'last', 'epoch')
if (tonumber(state[2]) or 0) > tonumber(epoch) then return 'fenced' end
if state[1] ~= expected then return 'missed' end
if ahead_ms ~= '' then
  local limit = now + tonumber(ahead_ms)
  if tonumber(expected) <= limit or tonumber(to) > limit then return 'missed' end
end
redis.call('HSET', periodic, 'last', to, 'epoch', epoch, 'schedule', schedule)
return 'anchored'
