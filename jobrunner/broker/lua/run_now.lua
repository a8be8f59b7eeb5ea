local waiting, scheduled, arrival, wake = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- run_now: scheduled → waiting now, behind all waiting tasks, whatever the time it was scheduled for.
-- KEYS  waiting, scheduled: zsets · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then ids
-- reply a list, for each id: 'ok' or 'not_scheduled' (nothing changed)
-- Works on a server that is full. Adds first and removes last, so that an error in between loses no task.
-- include numbers commands queue_position waiting_set

local now, moved = read_clock(now_ms), 0

local function run_one(id)
  local task = redis.pcall('HMGET', tasks .. id, 'id', 'priority')
  if task.err or not task[1] or not redis.call('ZSCORE', scheduled, id) then return 'not_scheduled' end
  local set, score, place = position_for(waiting, scheduled, arrival, task[2], now, now)
  redis.call('HSET', tasks .. id, 'place', place)
  insert(set, score, id)
  redis.call('ZREM', scheduled, id)
  moved = moved + 1
  return 'ok'
end

redis.call('ZREM', scheduled, '')  -- frees nothing, but lets a full server take the writes: see lib/commands.lua
local replies = {}
for i = 3, #ARGV do replies[i - 2] = run_one(ARGV[i]) end
if moved > 0 then notify_worker(wake) end
return replies
