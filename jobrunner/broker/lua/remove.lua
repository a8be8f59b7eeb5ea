local waiting, scheduled, pending, dead, done, leases, counters, outbox = unpack(KEYS)
local now_ms, tasks, dead_only = unpack(ARGV, 1, 3)
-- remove: waiting, scheduled, dead or finished → gone, index and hash together, for tasks by their ids.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · counters, outbox: hashes
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · dead_only: '1' keeps tasks that are not dead, '' ·
--       then ids
-- reply a list, for each id: 'ok', 'reserved' (a worker has it: nothing changed) or 'gone' (also: not dead)
-- A lease that has ended protects no task.
-- Works on a server that is full.
-- include numbers commands queue_position waiting_set partition_limits task_end task_leases error_groups

local now, removed, finished, prefix, left = read_clock(now_ms), 0, 0, string.sub(waiting, 1, -8), {}

local function remove_one(id)
  if dead_only == '1' and not redis.call('ZSCORE', dead, id) then return 'gone' end
  local lease_end = redis.call('ZSCORE', pending, id)
  if lease_end and tonumber(lease_end) > now then return 'reserved' end
  if lease_end then end_leases({id}, {1}) end
  local was_done = redis.call('ZREM', done, id)
  local is_record = was_done == 1 and read_record(done, id)
  local was_dead = redis.call('ZREM', dead, id)
  local group = was_dead == 1 and redis.pcall('HGET', tasks .. id, 'group')
  if group and not group.err then leave_group(group) end
  take_off_partition(prefix, id, tonumber(redis.call('ZSCORE', waiting, id) or 0), left)
  local was_live = redis.call('ZREM', waiting, id) + redis.call('ZREM', scheduled, id) + (lease_end and 1 or 0)
  if was_done + was_dead + was_live == 0 then return 'gone' end
  local onward = was_live > 0 and redis.pcall('HGET', tasks .. id, 'then')
  if was_dead + was_live > 0 or is_record then redis.call('UNLINK', tasks .. id) end
  post(onward, 'cancelled', '')
  removed, finished = removed + was_dead + was_live, finished + was_done
  return 'ok'
end

check_sets(waiting, scheduled, pending, dead, done, leases)
redis.call('HLEN', outbox)
local replies = {}
for i = 4, #ARGV do replies[i - 3] = remove_one(ARGV[i]) end
settle_partitions(prefix, left)
if removed > 0 then redis.call('HINCRBY', counters, 'purged', removed) end
if finished > 0 then redis.call('HINCRBY', counters, 'history_purged', finished) end
return replies
