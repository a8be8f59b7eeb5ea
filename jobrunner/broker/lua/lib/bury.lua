-- Ends tasks that are given up: dead at `now`, with the reason. The caller has taken the id out of its set.
local function bury(dead, counters, key, id, now, reason)
  redis.call('ZADD', dead, exact(now), id)
  redis.pcall('HSET', key, 'error', reason, 'died_at', exact(now))
  redis.call('HINCRBY', counters, 'dead', 1)
end
