-- Gives a task up: dead at `now`, with the reason. The caller takes it out of the set it is in.
local function bury(id, now, reason)
  redis.call('ZADD', dead, now, id)
  redis.pcall('HSET', tasks .. id, 'error', reason, 'died_at', exact(now))
  redis.call('HINCRBY', counters, 'dead', 1)
end
