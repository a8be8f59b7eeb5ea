local MAX_FORWARDS = 100

-- Takes a task that was given up on to another queue of its tag, at the end of the line and with its counts at zero.
local function forward(id, now, reason, to, hops)
  local line = string.sub(tasks, 1, -6) .. string.gsub(to, '^.*/', '') .. ':'
  local priority = redis.call('HGET', tasks .. id, 'priority') or ''
  local set, score, place = join(line .. 'waiting', line .. 'scheduled', line .. 'arrival', priority, now, now)
  redis.call('ZADD', set, score, id)
  redis.call('HSET', tasks .. id, 'queue', to, 'place', place, 'error', reason, 'retry_count', 0, 'hops', hops + 1,
    'more', 1)
  redis.call('HDEL', tasks .. id, 'expiries', 'expires_in_ms')
  redis.call('HINCRBY', line .. 'counters', 'moved_in', 1)
  redis.call('HINCRBY', counters, 'moved_out', 1)
  wake_one(line .. 'wake')
end

-- Gives a task up: dead at `now` with the reason, or gone at once, or forwarded, as the queue is set. The caller takes
-- it out of the set it is in.
local function bury(id, now, reason, defaults)
  local task = redis.pcall('HMGET', tasks .. id, 'then', 'type')
  count_one(task[2], 'dead')
  post(task[1], 'dead', '')
  local hops = defaults.dead_to and (number(redis.call('HGET', tasks .. id, 'hops')) or 0)
  if hops and hops < MAX_FORWARDS then return forward(id, now, reason, defaults.dead_to, hops) end
  if defaults.dead_ttl == 0 then
    redis.call('UNLINK', tasks .. id)
    redis.call('HINCRBY', counters, 'trimmed', 1)
    return
  end
  redis.call('ZADD', dead, now, id)
  redis.pcall('HSET', tasks .. id, 'error', reason, 'died_at', exact(now))
end
