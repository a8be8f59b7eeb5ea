-- Bounds the tasks that one call promotes, recovers or trims, so that it does not block the server for long.
local SLICE = 500

-- Calls a command with any number of trailing words, in slices that fit Lua's stack.
local function call_sliced(command, key, words)
  for first = 1, #words, 4000 do
    redis.call(command, key, unpack(words, first, math.min(first + 3999, #words)))
  end
end

-- Deletes any number of task hashes.
local function unlink(doomed)
  for first = 1, #doomed, 4000 do
    redis.call('UNLINK', unpack(doomed, first, math.min(first + 3999, #doomed)))
  end
end

-- Returns how many of the hashes exist.
local function count_existing(hashes)
  local found = 0
  for first = 1, #hashes, 4000 do
    found = found + redis.call('EXISTS', unpack(hashes, first, math.min(first + 3999, #hashes)))
  end
  return found
end

-- A server at its maxmemory accepts the writes of a script only after a command that frees memory. This command frees
-- nothing (no id is empty), so a script may add first and remove last: an error in between then loses no task.
local function write_even_when_full()
  redis.call('ZREM', pending, '')
end

-- Raises the error for a sorted set of another type before the first write of a script: no repair of the key would heal
-- what a script leaves half done.
local function check_sets(...)
  for _, set in ipairs({...}) do redis.call('ZCARD', set) end
end

-- Deletes the rest of a task whose hash cannot be read although its id is in a set, and counts it. HMGET comes first
-- because it raises when this user has no right to read, which is no damage, and must end the script.
local function drop_damaged(id)
  redis.call('HMGET', counters, 'orphaned')
  redis.call('UNLINK', tasks .. id)
  redis.call('HINCRBY', counters, 'orphaned', 1)
end

-- Wakes one idle worker. The set has one member at most: a hint, as workers also poll.
local function notify_worker(wake)
  redis.call('ZADD', wake, 0, '1')
end

-- Wakes a worker after a task left a queue with limits, because a limit may have kept the worker from the next task.
local function notify_worker_if_limited(wake)
  local set = redis.call('HMGET', settings, 'max_inflight', 'key_inflight')
  if set[1] or set[2] then notify_worker(wake) end
end

-- Wakes one producer that waits for capacity. A hint, as notify_worker is.
local function notify_producer(wake)
  local waiting_producers = string.gsub(wake, 'wake$', 'capacity')
  redis.call('ZADD', waiting_producers, 0, '1')
end
