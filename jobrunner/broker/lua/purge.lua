local set, counters, outbox, settings = unpack(KEYS)
local now_ms, tasks, count, before, counter = unpack(ARGV)
-- purge: deletes the first tasks of one set, index and hash together; called until nothing is left.
-- KEYS  set: zset, any of waiting, scheduled, dead, done · counters, outbox, settings: hashes
-- ARGV  now_ms: unused · tasks: prefix of the task hashes · count: at most so many · before: only those with a lower
--       score, '' = any · counter: the total that counts them; those of `done` begin with 'history'
-- reply how many were deleted
-- Works on a server that is full.
-- include numbers commands queue_position waiting_set partition_limits task_end history error_groups

local last = before == '' and '+inf' or '(' .. before
local found = redis.call('ZRANGEBYSCORE', set, '-inf', last, 'WITHSCORES', 'LIMIT', 0, count)
if #found == 0 then return 0 end
redis.call('HLEN', outbox)  -- before the first write: no repair of the key heals what a script leaves half done
local is_history = string.sub(counter, 1, 7) == 'history'
local is_waiting, is_dead = string.sub(set, -8) == ':waiting', string.sub(set, -5) == ':dead'
local ids, keys, left = {}, {}, {}
for n = 1, #found, 2 do
  ids[#ids + 1] = found[n]
  if is_waiting then take_off_partition(string.sub(set, 1, -8), found[n], tonumber(found[n + 1]), left) end
end
settle_partitions(string.sub(set, 1, -8), left)
redis.call('ZREM', set, '')  -- as write_even_when_full: what is noted next comes before what is deleted
if is_history then note_trimmed(settings, found[#found]) end
redis.call('ZREMRANGEBYRANK', set, 0, #ids - 1)
for _, id in ipairs(ids) do
  local key = tasks .. id
  if not is_history or read_record(set, id) then keys[#keys + 1] = key end
  local task = not is_history and redis.pcall('HMGET', key, 'then', 'finished_at', 'died_at', 'group')
  if task and not task.err then
    if not (task[2] or task[3]) then post(task[1], 'cancelled', '') end
    if is_dead then leave_group(task[4]) end
  end
end
if keys[1] then redis.call('UNLINK', unpack(keys)) end
redis.call('HINCRBY', counters, counter, #ids)
return #ids
