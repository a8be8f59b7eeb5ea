local settings, wake = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- configure: sets and removes settings of a queue in one step and wakes a worker; the others stay as they are.
-- KEYS  settings: hash · wake: zset
-- ARGV  now_ms: Unix ms or '' · then field, value, ...; an empty value removes the field, '+N' means in N ms
-- reply 1
-- Works on a server that is full, where pausing a queue may help. Its first write frees nothing.
-- include numbers commands

local PARTITION_SETTINGS = {'key_inflight', 'key_tokens', 'key_interval_us', 'fair'}
local before = redis.call('HMGET', settings, unpack(PARTITION_SETTINGS))
redis.call('HDEL', settings, '')
for i = 2, #ARGV, 2 do
  local value = ARGV[i + 1]
  if string.sub(value, 1, 1) == '+' then value = exact(read_clock(now_ms) + value) end
  if value == '' then
    redis.call('HDEL', settings, ARGV[i])
  else
    redis.call('HSET', settings, ARGV[i], value)
  end
end

-- Lets the next reserves check blocked partitions again, or return tasks from partitions to the queue.
local after = redis.call('HMGET', settings, unpack(PARTITION_SETTINGS))
local was_partitioned = before[1] or before[2] or before[4]
if was_partitioned and (after[1] ~= before[1] or after[2] ~= before[2] or after[3] ~= before[3]) then
  redis.call('HSET', settings, 'recheck', 1)
end
if before[1] and not after[1] then
  local prefix = string.sub(settings, 1, -9)
  redis.call('UNLINK', prefix .. 'holders', prefix .. 'inflight')  -- reports no longer update them
end
if was_partitioned and not (after[1] or after[2] or after[4]) then redis.call('HSET', settings, 'parked', 1) end
notify_worker(wake)
return 1
