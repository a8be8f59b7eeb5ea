local waiting, scheduled, pending, leases, settings, bucket, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks, queue = unpack(ARGV, 1, 3)
-- release: pending → waiting at the original position, or after a delay (snooze) → scheduled. No attempt is spent, and
-- no token of a rate for a task that did not begin.
-- KEYS  waiting, scheduled, pending, leases: zsets · settings, bucket, counters: hashes · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name
--       then for each report: id, number of its lease, delay_ms ('' = to its position, it did not begin; '!' = to its
--       position, it had begun; 0 = to the end of the queue; '~N' = due in N ms, but it did not begin: the worker does
--       not know its job)
-- reply a list, for each report: 'waiting', 'scheduled', or 'gone', 'not_reserved', 'lost' (nothing changed)
-- Works on a server that is full.
-- include numbers commands queue_position waiting_set task_end task_leases token_bucket
-- rarely has_ended reason_of drop_damaged position_for slot_at arrival_after
-- rarely add_to_partitions
-- rarely refund

local now = read_clock(now_ms)
local ids, numbers, starts = read_reports(4, 3)
local verdicts, live = check_leases(ids, numbers, now, queue)
if #live > 0 then write_even_when_full() end
local unbegun, unbegun_of = 0, {}

-- A task that had begun has no time to start any more.
local function release_one(id, delay)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'place', 'priority', 'cancel_requested', 'unknown_since', 'key')
  if task.err or not task[1] then
    drop_damaged(id)
    return 'gone'
  end
  local unbegun_delay = string.match(delay, '^~(.+)')
  if delay == '' or unbegun_delay then
    unbegun = unbegun + 1
    if task[6] then unbegun_of[task[6]] = (unbegun_of[task[6]] or 0) + 1 end
  end
  if task[5] and delay ~= '' and not unbegun_delay then redis.call('HDEL', key, 'unknown_since') end
  if delay == '' or delay == '!' or task[4] then  -- the next reserve cancels what is to be cancelled
    if delay == '!' then redis.call('HSET', key, 'expires_in_ms', 'never', 'more', 1) end
    add_waiting(waiting, {number(task[2]) or now, id})
    return 'waiting'
  end
  local set, score, place = position_for(waiting, scheduled, arrival, task[3], now + (unbegun_delay or delay), now)
  if unbegun_delay then
    redis.call('HSETNX', key, 'unknown_since', exact(now))
    redis.call('HSET', key, 'place', place, 'more', 1)
  else
    redis.call('HSET', key, 'place', place, 'expires_in_ms', 'never', 'more', 1)
  end
  insert(set, score, id)
  return 'scheduled'
end

for _, n in ipairs(live) do verdicts[n] = release_one(ids[n], ARGV[starts[n] + 2]) end
end_leases(ids, live)
if unbegun > 0 then refund(string.sub(waiting, 1, -8), unbegun, unbegun_of, now) end
if #live > 0 then notify_worker(wake) end
return verdicts
