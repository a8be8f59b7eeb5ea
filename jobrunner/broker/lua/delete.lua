local pending, done, leases, settings, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks, id = unpack(ARGV)
-- delete: ends an outstanding reservation and removes the task for good, whoever holds it.
-- KEYS  pending, done, leases: zsets · settings, counters: hashes · wake: zset · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id
-- reply 'ok', 'gone' (no such task: a success) or 'not_reserved' (it exists and is under no lease: nothing changed)
-- include numbers commands task_end history task_leases

local now = read_clock(now_ms)
local key = tasks .. id
local task = redis.pcall('HMGET', key, 'id', 'then', 'type')
local lease_end = redis.call('ZSCORE', pending, id)
if lease_end and (task.err or not task[1]) then return drop_leased(id) end
if task.err or not task[1] or is_finished(key) then return 'gone' end
if not lease_end or tonumber(lease_end) <= now then return 'not_reserved' end
retire({id}, {task[3]}, now, read_history())
redis.call('ZREM', pending, id)
free_partitions({id})
redis.call('ZREM', leases, id)
post(task[2], 'succeeded', '')
redis.call('HINCRBY', counters, 'succeeded', 1)
notify_worker_if_limited(wake)
return 'ok'
