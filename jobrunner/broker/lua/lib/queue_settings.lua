-- Names DEFAULT_... are not declared in Lua: the linker replaces them with the defaults of `queue_settings.py`.

-- `paused` is '1', or the Unix ms at which the pause ends by itself. Most queues have no settings at all.
local function read_config(now)
  local words = redis.call('HGETALL', settings)
  local read = {keepalive = DEFAULT_KEEPALIVE_MS, max_attempts = DEFAULT_MAX_ATTEMPTS, dead_ttl = DEFAULT_DEAD_TTL_MS,
    dead_max = DEFAULT_DEAD_MAX, max_inflight = math.huge, key_inflight = 0, is_partitioned = false, at_most = 0,
    foreseen = false}
  if #words == 0 then return read end
  local set = {}
  for i = 1, #words, 2 do set[words[i]] = words[i + 1] end
  read.resumes = set.paused ~= '1' and number(set.paused) or nil
  read.paused = set.paused and (not read.resumes or read.resumes > now)
  read.keepalive = lease_length(set.keepalive_ms) or read.keepalive
  read.max_attempts = number(set.max_attempts) or read.max_attempts
  read.dead_ttl = number(set.dead_ttl_ms) or read.dead_ttl
  read.dead_max = number(set.dead_max) or read.dead_max
  -- A shard of a queue with `partitions` has a slice of these limits (client/operations/partitions.py).
  local most = number(set.slice_hold or set.slice_inflight)
  if not most and (number(set.max_inflight) or 0) > 0 then most = number(set.max_inflight) end
  read.max_inflight = most or math.huge
  read.max_tokens, read.interval = number(set.slice_tokens or set.max_tokens), number(set.interval_us)
  read.expires_in, read.dead_letter_queue = number(set.expires_in_ms), set.dead_letter_queue
  read.is_partitioned = (set.fair or set.key_inflight or set.key_tokens) and true or false
  read.key_inflight = number(set.key_inflight) or 0
  read.key_tokens, read.key_interval = number(set.key_tokens), number(set.key_interval_us)
  read.parked, read.recheck, read.rotation_seq = set.parked, set.recheck, number(set.rotation_seq)
  read.capacity_wanted = number(set.capacity_wanted)
  read.history_ms, read.history_max = set.history_ms, set.history_max
  return read
end

-- Whether a task has no attempt left; 0 means no limit.
local function is_spent(attempts, max_attempts)
  return max_attempts > 0 and attempts >= max_attempts
end

-- The remaining capacity of the queue, for waiting and scheduled tasks together. Sets `capacity_wanted`: the time until
-- which a producer waits for capacity, Unix ms, or nil; and `partitioning`: false when the queue has no partitions,
-- else the settings that `add_waiting` needs.
local capacity_wanted
local partitioning
local function capacity_left(settings, waiting, scheduled)
  local set = redis.call('HMGET', settings, 'max_size', 'capacity_wanted', 'fair', 'key_inflight', 'key_tokens',
    'rotation_seq', 'slice_size')
  partitioning = (set[3] or set[4] or set[5]) and {inflight = set[4], tokens = set[5], rotation_seq = set[6]} or false
  local most = set[1] and number(set[7] or set[1])  -- a shard has a part (client/operations/shard_sizes.py)
  capacity_wanted = most and number(set[2])
  return most and most - redis.call('ZCARD', waiting) - redis.call('ZCARD', scheduled) or math.huge
end

-- Whether one more task would not fit.
local function is_at_capacity(settings, waiting, scheduled)
  return capacity_left(settings, waiting, scheduled) < 1
end

-- The reply of an enqueue that would not fit, with the capacity of the queue, or of this shard.
local function full_reply(settings)
  local most = redis.call('HMGET', settings, 'slice_size', 'max_size')
  return {'full', number(most[1] or most[2])}
end

-- Several producers may wait, and a hint wakes one of them: the next is woken when the queue still has capacity.
local function notify_next_producer(settings, waiting, scheduled, wake)
  if not is_at_capacity(settings, waiting, scheduled) then notify_producer(wake) end
end
