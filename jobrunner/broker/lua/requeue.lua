local waiting, dead, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- requeue: dead → waiting, behind all that wait, with its counts at zero.
-- KEYS  waiting, dead: zsets · counters: hash · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then ids
-- reply list beside the ids: 'ok', 'not_dead' or 'gone' (nothing changed)
-- include clock place wake

local now = read_clock(now_ms)
local last = tonumber(redis.call('GET', arrival)) or 0
local replies, done = {}, 0
for i = 3, #ARGV do
  local id = ARGV[i]
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'priority')
  if task.err or not task[1] then
    redis.call('ZREM', dead, id)
    replies[#replies + 1] = 'gone'
  elseif redis.call('ZREM', dead, id) == 0 then
    replies[#replies + 1] = 'not_dead'
  else
    last = arrival_after(last, now)
    redis.call('HDEL', key, 'died_at', 'expiries', 'expires_in_ms', 'cancel_requested')
    redis.call('HSET', key, 'attempts', 0, 'retry_count', 0)
    redis.call('ZADD', waiting, exact(place_of(task[2], last)), id)
    replies[#replies + 1], done = 'ok', done + 1
  end
end
if done > 0 then
  redis.call('SET', arrival, exact(last))
  redis.call('HINCRBY', counters, 'requeued', done)
  wake_one(wake)
end
return replies
