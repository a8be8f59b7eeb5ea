local waiting, scheduled, dead, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks, start_ms, step_ms, changed = unpack(ARGV, 1, 5)
-- requeue: dead → waiting, behind all waiting tasks, with its counts at zero, that of moves too; or → scheduled, one
-- after the other. total_attempts goes on.
-- KEYS  waiting, scheduled, dead: zsets · counters: hash · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · start_ms: from now to when the first is due ·
--       step_ms: from one to the next · changed: how many of the following words are field, value, ... to set ·
--       then these, then ids
-- reply a list, for each id: 'ok', 'not_dead' or 'gone' (nothing changed)
-- Works on a server that is full.
-- include numbers commands queue_position waiting_set error_groups

local now = read_clock(now_ms)
local due, first, done = now + start_ms, 6 + changed, 0

local function requeue_one(id)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'priority', 'group', 'retry_count', 'total_attempts')
  local exists, is_dead = not task.err and task[1], redis.call('ZSCORE', dead, id)
  if not is_dead then return exists and 'not_dead' or 'gone' end
  if not exists then
    drop_damaged(id)
    redis.call('ZREM', dead, id)
    return 'gone'
  end
  -- First, as it frees: see lib/commands.lua.
  redis.call('HDEL', key, 'died_at', 'expiries', 'suspect', 'cancel_requested', 'unknown_since', 'group', 'hops')
  local set, score, place = position_for(waiting, scheduled, arrival, task[2], due, now)
  redis.call('HSET', key, 'retry_count', 0, 'place', place, 'expires_in_ms', 'never', 'more', 1,
    'total_attempts', (number(task[5]) or 0) + (number(task[4]) or 0), unpack(ARGV, 6, first - 1))
  insert(set, score, id)
  redis.call('ZREM', dead, id)
  leave_group(task[3])
  done, due = done + 1, due + step_ms
  return 'ok'
end

local replies = {}
for i = first, #ARGV do replies[i - first + 1] = requeue_one(ARGV[i]) end
if done > 0 then
  redis.call('HINCRBY', counters, 'requeued', done)
  notify_worker(wake)
end
return replies
