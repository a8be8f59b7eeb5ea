-- Damage: an id in a set without a hash that can be read. What is left of it goes, and is counted.
local function drop(id)
  redis.call('UNLINK', tasks .. id)
  redis.call('HINCRBY', counters, 'orphaned', 1)
end
