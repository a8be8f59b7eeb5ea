local waiting, scheduled, pending, dead, settings, counters, wake, to_waiting, to_scheduled, to_counters, to_arrival, to_wake = unpack(KEYS)
local now_ms, tasks, queue, to_queue, id, token, priority, delay_ms, max_hops = unpack(ARGV)
-- move: pending of one queue → waiting or scheduled of another with the same tag, in one step.
-- KEYS  of the queue it leaves: waiting, scheduled, pending, dead, settings, counters, wake
--       of the queue it enters: to_waiting, to_scheduled: zsets · to_counters: hash · to_arrival: string · to_wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes (one tag) · queue, to_queue: full names · id, token
--       priority ('' = as it was) · delay_ms (0 = now) · max_hops (0 = no limit) · then field, value, ... to set
-- reply 'ok', 'gone', 'not_reserved', 'lost' or 'hops' (all but 'ok' changed nothing)
-- Attempts, failures and expiries start anew; total_attempts and hops go on.
-- include clock place wake lease

local now = read_clock(now_ms)
local refused = refusal(id, token, deadlines_of({id})[1], now, queue)
if refused then return refused end
local key = tasks .. id
local task = redis.call('HMGET', key, 'attempts', 'total_attempts', 'hops', 'priority')
local hops = (tonumber(task[3]) or 0) + 1
if tonumber(max_hops) > 0 and hops > tonumber(max_hops) then return 'hops' end

if priority == '' then priority = task[4] else redis.call('HSET', key, 'priority', priority) end
redis.call('ZREM', pending, id)
redis.call('HDEL', key, 'token', 'place', 'error', 'expiries')
redis.call('HSET', key, 'queue', to_queue, 'attempts', 0, 'retry_count', 0, 'hops', hops,
  'total_attempts', (tonumber(task[2]) or 0) + (tonumber(task[1]) or 0), unpack(ARGV, 10))
if tonumber(delay_ms) > 0 then
  redis.call('ZADD', to_scheduled, exact(slot_at(to_scheduled, math.ceil(now + tonumber(delay_ms)))), id)
else
  local arrived = arrival_after(tonumber(redis.call('GET', to_arrival)) or 0, now)
  redis.call('SET', to_arrival, exact(arrived))
  redis.call('ZADD', to_waiting, exact(place_of(priority, arrived)), id)
end
redis.call('HINCRBY', counters, 'moved_out', 1)
redis.call('HINCRBY', to_counters, 'moved_in', 1)
wake_one(to_wake)
return 'ok'
