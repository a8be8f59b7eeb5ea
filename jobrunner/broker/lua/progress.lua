local pending, leases = unpack(KEYS)
local now_ms, tasks, queue, id, lease, progress = unpack(ARGV)
-- progress: stores the progress of a running task; only the attempt that holds the lease may.
-- KEYS  pending, leases: zsets
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · id · lease: its number ·
--       progress: JSON text
-- reply 'ok', 'stop' (noted, and the task was asked to stop), or 'gone', 'not_reserved', 'lost' (nothing changed)
-- include numbers task_end task_leases

local refused = check_leases({id}, {lease}, read_clock(now_ms), queue)
if refused[1] then return refused[1] end
local key = tasks .. id
if redis.call('EXISTS', key) == 0 then return 'gone' end
redis.call('HSET', key, 'progress', progress)
return redis.call('HEXISTS', key, 'cancel_requested') == 1 and 'stop' or 'ok'
