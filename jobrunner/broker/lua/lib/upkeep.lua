-- What every operation on a queue does first, each in a bounded slice: due tasks become waiting, leases that ended go
-- back to their place or to dead, dead tasks past their time are deleted. So no result depends on a sweeper's timing.
local SLICE = 500

local function promote(now)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', exact(now), 'WITHSCORES', 'LIMIT', 0, SLICE)
  if #due == 0 then return 0 end
  local places, ids = {}, {}
  for i = 1, #due, 2 do
    local priority = redis.pcall('HGET', tasks .. due[i], 'priority')
    if type(priority) == 'table' then priority = nil end
    places[i], places[i + 1] = exact(place_of(priority, tonumber(due[i + 1]))), due[i]
    ids[#ids + 1] = due[i]
  end
  redis.call('ZADD', waiting, unpack(places))
  redis.call('ZREM', scheduled, unpack(ids))
  return #ids
end

local function recover_one(now, id, defaults)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'attempts', 'max_attempts', 'place', 'max_expiries',
    'expiries', 'retry_count')
  if task.err or not task[1] then
    redis.call('HINCRBY', counters, 'orphaned', 1)
    return
  end
  local attempts = tonumber(task[2]) or 1
  local max_attempts = tonumber(task[3]) or defaults.max_attempts
  local expiries = (tonumber(task[6]) or 0) + 1
  redis.call('HSET', key, 'expiries', expiries, 'retry_count', (tonumber(task[7]) or 0) + 1)
  redis.call('HINCRBY', counters, 'recovered', 1)
  if is_spent(attempts, max_attempts) or is_spent(expiries, tonumber(task[5]) or max_attempts) then
    local reason = 'the lease of attempt ' .. attempts .. ' ended without a report: its worker died, hung or was cut off'
    bury(dead, counters, key, id, now, reason)
  else
    redis.call('ZADD', waiting, exact(tonumber(task[4]) or now), id)
  end
end

local function recover(now, defaults)
  local expired = redis.call('ZRANGEBYSCORE', pending, '-inf', exact(now), 'LIMIT', 0, SLICE)
  if #expired == 0 then return 0 end
  redis.call('ZREM', pending, unpack(expired))
  for _, id in ipairs(expired) do recover_one(now, id, defaults) end
  return #expired
end

local function trim_dead(now, defaults)
  local old = redis.call('ZRANGEBYSCORE', dead, '-inf', exact(now - defaults.dead_ttl), 'LIMIT', 0, SLICE)
  local over = redis.call('ZCARD', dead) - #old - defaults.dead_max
  if defaults.dead_max > 0 and over > 0 then
    old = redis.call('ZRANGE', dead, 0, math.min(#old + over, SLICE) - 1)
  end
  if #old == 0 then return 0 end
  redis.call('ZREM', dead, unpack(old))
  for i, id in ipairs(old) do old[i] = tasks .. id end
  redis.call('UNLINK', unpack(old))
  redis.call('HINCRBY', counters, 'trimmed', #old)
  return #old
end

local function read_defaults()
  local set = redis.call('HMGET', settings, 'paused', 'keepalive_ms', 'max_attempts', 'dead_ttl_ms', 'dead_max')
  return {
    paused = set[1], keepalive = tonumber(set[2]) or DEFAULT_KEEPALIVE_MS,
    max_attempts = tonumber(set[3]) or DEFAULT_MAX_ATTEMPTS,
    dead_ttl = tonumber(set[4]) or DEFAULT_DEAD_TTL_MS, dead_max = tonumber(set[5]) or 0,
  }
end

local function upkeep(now)
  local defaults = read_defaults()
  local moved = promote(now) + recover(now, defaults)
  if moved > 0 then wake_one(wake) end
  return defaults, moved + trim_dead(now, defaults)
end

-- When this queue next needs upkeep, Unix ms; '' when nothing is foreseen.
local function next_event(defaults)
  local soonest = math.huge
  local first = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  if first[2] then soonest = tonumber(first[2]) end
  first = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
  if first[2] then soonest = math.min(soonest, tonumber(first[2])) end
  first = redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')
  if first[2] then soonest = math.min(soonest, tonumber(first[2]) + defaults.dead_ttl) end
  return soonest < math.huge and exact(soonest) or ''
end
