local waiting, scheduled, pending, dead, leases, counters, waiters, outbox = unpack(KEYS)
local now_ms, tasks, finished, id, keep_ms, left = unpack(ARGV)
-- cancel: waiting, scheduled or dead → cancelled; a task under a lease is asked to stop and stays where it is.
-- KEYS  waiting, scheduled, pending, dead, leases: zsets · counters: hash · waiters: zset · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · finished: prefix of the channels that notify
--       waiters · id · keep_ms: how long the cancelled task stays readable · left: 'dead' leaves a dead task as it is,
--       'alive' one that is not dead, '' neither
-- reply 'ok', 'posted' (ok, and the outbox has an entry), 'reserved' (asked to stop) or 'gone' (finished, cancelled
--       before, or never was; also: left)
-- include numbers commands queue_position waiting_set partition_limits task_end task_leases error_groups

if left ~= '' and left == (redis.call('ZSCORE', dead, id) and 'dead' or 'alive') then return 'gone' end
local now = read_clock(now_ms)
local key = tasks .. id
local task = redis.pcall('HMGET', key, 'id', 'retry_count', 'then', 'type', 'group')
local exists = not task.err and task[1]
local lease_end = redis.call('ZSCORE', pending, id)
check_sets(waiting, scheduled, dead, leases)
if exists and task[3] then redis.call('HLEN', outbox) end
write_even_when_full()
if exists and lease_end and tonumber(lease_end) > now then
  redis.call('HSET', key, 'cancel_requested', 1, 'more', 1)
  return 'reserved'
end

local removed = redis.call('ZREM', dead, id)
if removed == 1 and exists then leave_group(task[5]) end
leave_partition(string.sub(waiting, 1, -8), id)
for _, set in ipairs({waiting, scheduled, pending}) do removed = removed + redis.call('ZREM', set, id) end
if removed == 0 then return 'gone' end
redis.call('ZREM', leases, id)
if lease_end then free_partitions({id}) end
if not exists then
  drop_damaged(id)
  return 'gone'
end
local is_posted = end_cancelled(id, task[4], task[3], (number(task[2]) or 0) + (lease_end and 1 or 0), keep_ms, now)
notify_waiters(id, 'cancelled')
return is_posted and 'posted' or 'ok'
