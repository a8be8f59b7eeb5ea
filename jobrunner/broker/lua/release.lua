local waiting, scheduled, pending, leases, counters, wake = unpack(KEYS)
local now_ms, tasks, queue = unpack(ARGV, 1, 3)
-- release: pending → waiting at the original place, or → scheduled after a delay (snooze). No attempt is spent.
-- KEYS  waiting, scheduled, pending, leases: zsets · counters: hash · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name
--       then for each report: id, number of its lease, delay_ms ('' = back to its place)
-- reply list beside the reports: 'waiting', 'scheduled', or 'gone', 'not_reserved', 'lost' (nothing changed)
-- Works on a server that is full.
-- include number clock place wake batch full drop over lease
-- rarely has_ended reason_of drop slot_at place_of

local now = read_clock(now_ms)
local ids, numbers, starts = read_reports(4, 3)
local verdicts, live = judge(ids, numbers, now, queue)
if #live > 0 then write_even_when_full() end

local function release_one(id, delay)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'place', 'priority')
  if task.err or not task[1] then
    drop(id)
    return 'gone'
  end
  if delay == '' then
    redis.call('ZADD', waiting, number(task[2]) or now, id)
    return 'waiting'
  end
  local due = slot_at(scheduled, now + delay)
  redis.call('HSET', key, 'place', place_of(task[3], due), 'more', 1)
  redis.call('ZADD', scheduled, due, id)
  return 'scheduled'
end

for _, n in ipairs(live) do verdicts[n] = release_one(ids[n], ARGV[starts[n] + 2]) end
end_leases(ids, live)
if #live > 0 then wake_one(wake) end
return verdicts
