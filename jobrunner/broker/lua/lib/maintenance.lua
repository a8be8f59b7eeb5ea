-- scheduled → waiting, what is due, to its place in line. Each task promoted may touch memory that the server touches
-- for the first time, which is dear: a call promotes few, but who wants many promotes as many, as a line would give.
local PROMOTED_SLICE = 100

local function promoted_at_most(wanted)
  return wanted and wanted > PROMOTED_SLICE and math.min(wanted, SLICE) or PROMOTED_SLICE
end

-- Returns how many, and how many at most it would have been.
local function promote(now, wanted, by_key)
  local most = promoted_at_most(wanted)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', exact(last_slot_at(now)), 'WITHSCORES', 'LIMIT', 0, most)
  if #due == 0 then return 0, most end
  local places, ids = {}, {}
  for i = 1, #due, 2 do
    local place = redis.pcall('HGET', tasks .. due[i], 'place')
    places[i], places[i + 1] = number(place) or tonumber(due[i + 1]), due[i]
    ids[#ids + 1] = due[i]
  end
  write_even_when_full()
  line_up(waiting, places, by_key)
  redis.call('ZREM', scheduled, unpack(ids))
  return #ids, most
end

-- Deletes a bounded slice of what stands in a set since `before` or longer, and beyond that of the oldest when there
-- are more than `most` (0 = any number), index and hash together. Returns how many, and the score of the newest.
local function trim(set, before, most)
  local all = redis.call('ZCARD', set)
  if all == 0 then return 0 end
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', exact(before), 'LIMIT', 0, SLICE)
  local over = all - #old - most
  if most > 0 and over > 0 then old = redis.call('ZRANGE', set, 0, math.min(#old + over, SLICE) - 1) end
  if #old == 0 then return 0 end
  local newest = redis.call('ZSCORE', set, old[#old])
  redis.call('ZREMRANGEBYRANK', set, 0, #old - 1)
  for n, id in ipairs(old) do old[n] = tasks .. id end
  redis.call('UNLINK', unpack(old))
  return #old, newest
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

-- What every operation on a queue does first, each in a bounded slice: due tasks become waiting, leases that ended go
-- back to their place or to dead, dead tasks past their time are deleted. So no result depends on a sweeper's timing.
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

-- When the queue next has maintenance to do or a limit lifts (`lifts`), Unix ms; '' when neither is foreseen. What
-- `upkeep` read stays true until something is moved.
local function next_event(defaults, lifts)
  local soonest = defaults.foreseen
    or math.min(first_score(scheduled), first_score(pending), first_score(dead) + defaults.dead_ttl)
  soonest = math.min(soonest, lifts or math.huge)
  return soonest < math.huge and exact(soonest) or ''
end
