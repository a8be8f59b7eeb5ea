local waiting, scheduled, pending, dead, counters = unpack(KEYS)
local now_ms, tasks, finished, id, keep_ms = unpack(ARGV)
-- cancel: waiting, scheduled or dead → cancelled; a pending task is asked to stop and stays where it is.
-- KEYS  waiting, scheduled, pending, dead: zsets · counters: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · finished: prefix of the channels that tell waiters
--       id · keep_ms: how long the cancelled task stays readable
-- reply 'ok', 'reserved' (asked to stop) or 'gone' (finished, cancelled before, or never was)
-- include clock

local now = read_clock(now_ms)
local key = tasks .. id
if redis.call('ZSCORE', pending, id) then
  redis.call('HSET', key, 'cancel_requested', 1)
  return 'reserved'
end
local removed = redis.call('ZREM', waiting, id) + redis.call('ZREM', scheduled, id) + redis.call('ZREM', dead, id)
if removed == 0 then return 'gone' end
redis.call('HINCRBY', counters, 'cancelled', 1)
redis.call('PEXPIRE', key, keep_ms)
redis.pcall('HSET', key, 'outcome', 'cancelled', 'finished_at', exact(now))
redis.call('PUBLISH', finished .. id, 'cancelled')
return 'ok'
