-- How many tasks or ids one call works on at most, of those that it moves by itself.
local SLICE = 500

-- Calls a command with any number of trailing words, in slices that fit Lua's stack.
local function call_sliced(command, key, words)
  for first = 1, #words, 4000 do
    redis.call(command, key, unpack(words, first, math.min(first + 3999, #words)))
  end
end

-- Deletes hashes of tasks, any number of them.
local function unlink(doomed)
  for first = 1, #doomed, 4000 do
    redis.call('UNLINK', unpack(doomed, first, math.min(first + 3999, #doomed)))
  end
end

-- How many of the hashes exist.
local function count_existing(hashes)
  local found = 0
  for first = 1, #hashes, 4000 do
    found = found + redis.call('EXISTS', unpack(hashes, first, math.min(first + 3999, #hashes)))
  end
  return found
end

-- A server at its maxmemory takes what a script writes only behind a write that frees. This one frees nothing (no id is
-- empty) and so lets a script add first and remove last: an error in between then loses no task.
local function write_even_when_full()
  redis.call('ZREM', pending, '')
end

-- Damage: an id in a set without a hash that can be read. What is left of it goes, and is counted. Where the server
-- lets nobody read, that is no damage: the script ends there.
local function drop(id)
  redis.call('HMGET', counters, 'orphaned')
  redis.call('UNLINK', tasks .. id)
  redis.call('HINCRBY', counters, 'orphaned', 1)
end

-- Tells one idle worker that there may be work. A hint: one member at most, and polling is the guarantee.
local function wake_one(wake)
  redis.call('ZADD', wake, 0, '1')
end

-- Tells one idle worker, when something left a queue that hands out no more than so many at a time.
local function wake_if_capped(wake)
  local set = redis.call('HMGET', settings, 'max_inflight', 'key_inflight')
  if set[1] or set[2] then wake_one(wake) end
end

-- Tells one of those who wait for room in a full queue that there is some. A hint, as wake_one is.
local function hint_room(wake)
  local room = string.gsub(wake, 'wake$', 'capacity')
  redis.call('ZADD', room, 0, '1')
end
