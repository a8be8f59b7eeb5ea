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
