local first = unpack(KEYS)
local now_ms, number = unpack(ARGV, 1, 2)
-- register: notes the format where there is none, and adds queues to the registry that are not in it.
-- KEYS  first: the number of the format (string) or the registry (set of names), then the other; the
--       end of a key tells which it is: the two are in different slots, so a driver divides the call on a cluster
-- ARGV  now_ms: unused · number: of the caller's format · then the names of queues
-- reply a list, for each key: {the format that was found, or nil}; {how many queues were added}
-- A full server, or one where the caller lacks the right, adds nothing: that must not stop a worker.

local function note(key)
  local found = redis.pcall('GET', key)
  if not found then redis.pcall('SETNX', key, number) end
  return {found and not found.err and found}
end

local function register(key)
  local added = 0
  for n = 3, #ARGV do
    if redis.pcall('SISMEMBER', key, ARGV[n]) == 0 and redis.pcall('SADD', key, ARGV[n]) == 1 then added = added + 1 end
  end
  return {added}
end

local replies = {}
if not first then return replies end
for n, key in ipairs(KEYS) do replies[n] = (string.sub(key, -7) == ':queues' and register or note)(key) end
return replies
