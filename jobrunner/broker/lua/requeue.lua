local waiting, dead, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- requeue: dead → waiting, behind all that wait, with its counts at zero.
-- KEYS  waiting, dead: zsets · counters: hash · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then ids
-- reply list beside the ids: 'ok', 'not_dead' or 'gone' (nothing changed)
-- Works on a server that is full.
-- include number clock place wake drop

local now = read_clock(now_ms)
local last = tonumber(redis.call('GET', arrival)) or 0
local done = 0

local function requeue_one(id)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'priority')
  local exists, is_dead = not task.err and task[1], redis.call('ZSCORE', dead, id)
  if not is_dead then return exists and 'not_dead' or 'gone' end
  if not exists then
    drop(id)
    redis.call('ZREM', dead, id)
    return 'gone'
  end
  last = arrival_after(last, now)
  local place = place_of(task[2], last)
  redis.call('HDEL', key, 'died_at', 'expiries', 'cancel_requested')
  redis.call('HSET', key, 'retry_count', 0, 'place', place, 'expires_in_ms', 'never', 'more', 1)
  redis.call('ZADD', waiting, place, id)
  redis.call('ZREM', dead, id)
  done = done + 1
  return 'ok'
end

local replies = {}
for i = 3, #ARGV do replies[i - 2] = requeue_one(ARGV[i]) end
if done > 0 then
  redis.call('SET', arrival, exact(last))
  redis.call('HINCRBY', counters, 'requeued', done)
  wake_one(wake)
end
return replies
