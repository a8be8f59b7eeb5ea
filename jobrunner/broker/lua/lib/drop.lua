-- Damage: an id in a set without a hash that can be read. What is left of it goes, and is counted. Where the server
-- lets nobody read, that is no damage: the script ends there.
local function drop(id)
  redis.call('HMGET', counters, 'orphaned')
  redis.call('UNLINK', tasks .. id)
  redis.call('HINCRBY', counters, 'orphaned', 1)
end
