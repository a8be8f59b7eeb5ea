local waiting, scheduled, pending, dead, settings, counters, wake = unpack(KEYS)
local now_ms, tasks, queue = unpack(ARGV, 1, 3)
-- release: pending → waiting at the original place, or → scheduled after a delay (snooze). No attempt is spent.
-- KEYS  waiting, scheduled, pending, dead: zsets · settings, counters: hashes · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name
--       then for each report: id, token, delay_ms ('' = back to its place)
-- reply list beside the reports: 'waiting', 'scheduled', or 'gone', 'not_reserved', 'lost' (nothing changed)
-- include clock place wake batch lease

local now = read_clock(now_ms)
local verdicts, live, reports = judge(4, 3, now, queue)
if #live > 0 then call_sliced('ZREM', pending, live) end

local function release_one(id, at)
  local key, delay = tasks .. id, ARGV[at + 2]
  local task = redis.call('HMGET', key, 'attempts', 'place')
  redis.call('HSET', key, 'attempts', math.max((tonumber(task[1]) or 1) - 1, 0))
  if delay == '' then
    redis.call('ZADD', waiting, exact(tonumber(task[2]) or now), id)
    return 'waiting'
  end
  redis.call('ZADD', scheduled, exact(slot_at(scheduled, math.ceil(now + tonumber(delay)))), id)
  return 'scheduled'
end

for n, at in ipairs(reports) do
  verdicts[(at - 4) / 3 + 1] = release_one(live[n], at)
end
if #live > 0 then wake_one(wake) end
return verdicts
