local pending = unpack(KEYS)
local now_ms, tasks, queue, id, token, progress = unpack(ARGV)
-- progress: notes how far a running task has come; only the attempt that holds the lease may.
-- KEYS  pending: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · id, token
--       progress: JSON text
-- reply 'ok', 'stop' (noted, and the task was asked to stop), or 'gone', 'not_reserved', 'lost' (nothing changed)
-- include clock lease

local now = read_clock(now_ms)
local refused = refusal(id, token, redis.call('ZSCORE', pending, id), now, queue)
if refused then return refused end
redis.call('HSET', tasks .. id, 'progress', progress)
return redis.call('HEXISTS', tasks .. id, 'cancel_requested') == 1 and 'stop' or 'ok'
