local unfit = {}

-- Whether a task in line cannot be handed out: damage is dropped, a task past its time to start is dead. One that was
-- tried has started, so that time is nothing to it.
local function is_unfit(id, is_damaged, expires_in, enqueue_time, attempts, now, defaults)
  if is_damaged then
    drop(id)
    unfit[id] = true
    return true
  end
  local limit, since = defaults.expires_in, number(enqueue_time)
  if expires_in then limit = number(expires_in) end  -- its own decides, also when that is none
  if not limit or not since or since + limit > now or (number(attempts) or 0) > 0 then return false end
  redis.call('HINCRBY', counters, 'expired', 1)
  bury(id, now, 'expired before it started', defaults)
  unfit[id] = true
  return true
end

-- Hands ids from the front of the line to `take`, which says how many of them were fit, until there were `wanted`:
-- those behind an unfit one take its place. `take` also says at how many it stopped, nil where it took all. Returns how
-- many were fit, and whether a bound ended it, that on unfit ones or that of `take`.
local function walk_line(wanted, take)
  local taken, looked_at, bound = 0, 0, wanted + SLICE
  while taken < wanted and looked_at < bound do
    local ids = redis.call('ZRANGE', waiting, 0, wanted - taken - 1)
    if #ids == 0 then return taken, false end
    if looked_at == 0 then write_even_when_full() end
    local fit, stopped_at = take(ids, true)
    taken, looked_at = taken + fit, looked_at + #ids
    redis.call('ZREMRANGEBYRANK', waiting, 0, (stopped_at or #ids) - 1)
    if stopped_at then return taken, taken < wanted end
  end
  return taken, looked_at >= bound
end
