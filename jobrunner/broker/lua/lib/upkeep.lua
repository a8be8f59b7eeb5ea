-- What every operation on a queue does first, each in a bounded slice: due tasks become waiting, leases that ended go
-- back to their place or to dead, dead tasks past their time are deleted. So no result depends on a sweeper's timing.
local function recover(now, defaults)
  local expired = redis.call('ZRANGEBYSCORE', pending, '-inf', exact(now), 'LIMIT', 0, SLICE)
  if #expired == 0 then return 0 end
  write_even_when_full()
  local held = redis.call('ZMSCORE', leases, unpack(expired))
  for n, id in ipairs(expired) do recover_one(now, id, held[n], defaults) end
  redis.call('ZREM', pending, unpack(expired))
  redis.call('ZREM', leases, unpack(expired))
  if defaults.key_inflight > 0 then free_keys(expired) end
  return #expired
end

local function trim_dead(now, defaults)
  local gone = trim(dead, now - defaults.dead_ttl, defaults.dead_max)
  if gone > 0 then redis.call('HINCRBY', counters, 'trimmed', gone) end
  return gone
end

local function trim_done(now, history)
  if not history then return 0 end
  local gone, newest = trim(done, now - history.age, history.most)
  if gone > 0 then note_trimmed(settings, newest) end
  return gone
end

local function first_score(set)
  return tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Looks first, as mostly there is nothing to do: then `foreseen` is when there is.
local function upkeep(now, wanted)
  local defaults, due, promoted, slice, moved = read_defaults(now), first_score(scheduled), 0, nil, 0
  if due < now + 1 then promoted, slice = promote(now, wanted, defaults.by_key) end
  -- What stands behind a full slice of overdue tasks would overtake the rest of these: no more is handed out.
  defaults.at_most = defaults.paused and 0 or promoted == slice and slice or math.huge
  local ends = first_score(pending)
  moved = promoted + (ends <= now and recover(now, defaults) or 0)
  if moved > 0 then wake_one(wake) end
  local dies = first_score(dead) + defaults.dead_ttl
  if dies <= now or defaults.dead_max > 0 then moved = moved + trim_dead(now, defaults) end
  if moved == 0 then defaults.foreseen = math.min(due, ends, dies) end
  if defaults.history_ms or defaults.history_max then
    defaults.history = history_of(defaults.history_ms, defaults.history_max)
    moved = moved + trim_done(now, defaults.history)
  end
  return defaults, moved
end
