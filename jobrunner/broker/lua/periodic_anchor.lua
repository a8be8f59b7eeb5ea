local scheduled, wake, periodic = unpack(KEYS)
local now_ms, tasks, expected, to, ahead_ms, epoch, schedule = unpack(ARGV)
-- periodic_anchor: moves the last tick of a periodic job, when it is one of another schedule, or from a clock that was
--       ahead and is right again.
-- KEYS  scheduled, wake: zsets · periodic: hash {last, task, together, epoch, schedule, ...}
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · expected: `last` as the caller read it · to: Unix
--       ms, the last tick from now on · ahead_ms: only when it is more than so far ahead of the clock; '' in any case ·
--       epoch: fencing number of the caller's lead · schedule: digest of the schedule that it is a tick of from now on
-- reply 'anchored', 'missed' (it changed meanwhile, or is not so far ahead) or 'fenced' (an older leader)
-- include numbers commands

local now = read_clock(now_ms)
local state = redis.call('HMGET', periodic, 'last', 'epoch', 'task')
if (tonumber(state[2]) or 0) > tonumber(epoch) then return 'fenced' end
if state[1] ~= expected then return 'missed' end
if ahead_ms ~= '' then
  local limit = now + tonumber(ahead_ms)
  if tonumber(expected) <= limit or tonumber(to) > limit then return 'missed' end
end

-- Its task waits for a time of the clock that was ahead. It is moved with the tick, as it would block the next ticks
-- until then.
local due = number(state[3] and redis.call('ZSCORE', scheduled, state[3]))
local back = math.floor(math.min(tonumber(expected) - tonumber(to), (due or now) - now))
if back > 0 then
  local place = number(redis.call('HGET', tasks .. state[3], 'place')) or due
  redis.call('HSET', tasks .. state[3], 'place', exact(place - back))
  redis.call('ZADD', scheduled, exact(due - back), state[3])
  notify_worker(wake)
end
redis.call('HSET', periodic, 'last', to, 'together', to, 'epoch', epoch, 'schedule', schedule)
return 'anchored'
