local waiting, scheduled, pending, dead, leases, settings, counters, wake = unpack(KEYS)
local now_ms, tasks, count = unpack(ARGV)
-- pop: waiting → out of the queue, the first `count` in line: at most once, nothing comes back.
-- KEYS  waiting, scheduled, pending, dead, leases: zsets · settings, counters: hashes · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · count: at most so many
-- reply list of {id, type, payload, headers, encoding}; empty when nothing waits or the queue is paused
-- include number clock place wake batch full drop limits bury upkeep line

local now = read_clock(now_ms)
local defaults = upkeep(now)
local reply = {}

local function take_out(ids)
  local doomed = {}
  for _, id in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. id, 'type', 'payload', 'headers', 'encoding', 'enqueue_time',
      'expires_in_ms')
    if not is_unfit(id, task.err or not (task[1] or task[2] or task[5]), task[6], task[5], now) then
      reply[#reply + 1] = {id, task[1], task[2], task[3], task[4]}
      doomed[#doomed + 1] = tasks .. id
    end
  end
  unlink(doomed)
  if #doomed > 0 then redis.call('HINCRBY', counters, 'succeeded', #doomed) end
  return #doomed
end

walk_line(math.min(count, defaults.at_most), take_out)
if redis.call('ZCARD', waiting) > 0 then wake_one(wake) end
return reply
