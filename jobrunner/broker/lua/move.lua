local pending, leases, settings, counters, wake, to_waiting, to_scheduled, to_settings, to_counters, to_arrival, to_wake = unpack(KEYS)
local now_ms, tasks, queue, to_queue, id, lease, priority, delay_ms, max_hops = unpack(ARGV, 1, 9)
-- move: pending of one queue → waiting or scheduled of another with the same tag, in one step.
-- KEYS  pending, leases: zsets · settings, counters: hashes · wake: zset · to_waiting, to_scheduled: zsets, of the
--       queue it enters, as all that follow · to_settings, to_counters: hashes · to_arrival: string · to_wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes (one tag) · queue, to_queue: full names · id ·
--       lease: its number · priority: '' = as it was · delay_ms: 0 = now · max_hops: 0 = no limit ·
--       then field, value, ... to set
-- reply 'ok', 'gone', 'not_reserved', 'lost', 'hops' or 'full' (all but 'ok' changed nothing)
-- Attempts, failures and expiries start anew; total_attempts and hops go on.
-- include number clock place join wake batch lease size capped

local now = read_clock(now_ms)
local ids = {id}
local refused, live = judge(ids, {lease}, now, queue)
if refused[1] then return refused[1] end
local key = tasks .. id
local task = redis.pcall('HMGET', key, 'id', 'retry_count', 'total_attempts', 'hops', 'priority')
if task.err or not task[1] then return 'gone' end
local hops = (number(task[4]) or 0) + 1
if tonumber(max_hops) > 0 and hops > tonumber(max_hops) then return 'hops' end
if is_full(to_settings, to_waiting, to_scheduled, 1) then return 'full' end
if priority == '' then priority = task[5] or '1' end

local set, score, place = join(to_waiting, to_scheduled, to_arrival, priority, now + delay_ms, now)
redis.call('HSET', key, 'queue', to_queue, 'place', place, 'priority', priority, 'retry_count', 0, 'hops', hops,
  'more', 1, 'total_attempts', (number(task[3]) or 0) + (number(task[2]) or 0) + 1, unpack(ARGV, 10))
redis.call('HDEL', key, 'error', 'expiries')
redis.call('ZADD', set, score, id)
redis.call('HINCRBY', to_counters, 'moved_in', 1)
redis.call('HINCRBY', counters, 'moved_out', 1)
end_leases(ids, live)
wake_if_capped(wake)
wake_one(to_wake)
return 'ok'
