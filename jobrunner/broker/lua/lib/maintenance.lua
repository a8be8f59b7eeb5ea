-- Moves tasks that are due from `scheduled` to their position in `waiting`. Each may touch memory that the server
-- touches for the first time, which is slow: a call promotes few, but as many as a reserve asks for.
local PROMOTED_SLICE = 100

local function promoted_at_most(wanted)
  return wanted and wanted > PROMOTED_SLICE and math.min(wanted, SLICE) or PROMOTED_SLICE
end

-- Returns how many, and how many at most it would have been.
local function promote(now, wanted, by_partition)
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
  add_waiting(waiting, places, by_partition)
  redis.call('ZREM', scheduled, unpack(ids))
  return #ids, most
end

-- Deletes a bounded slice of the members of a set with scores up to `before`, and further the oldest members beyond
-- `most` (0 = no limit), index and hash together. `hash_of` is called with id and score of each, and returns the key of
-- the hash to delete with it, if any. Returns the number of deleted members, and the score of the newest.
local function trim(set, before, most, hash_of)
  local all = redis.call('ZCARD', set)
  if all == 0 then return 0 end
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', exact(before), 'WITHSCORES', 'LIMIT', 0, SLICE)
  local excess = all - #old / 2 - most
  if most > 0 and excess > 0 then
    old = redis.call('ZRANGE', set, 0, math.min(#old / 2 + excess, SLICE) - 1, 'WITHSCORES')
  end
  if #old == 0 then return 0 end
  redis.call('ZREMRANGEBYRANK', set, 0, #old / 2 - 1)
  local doomed = {}
  for n = 1, #old, 2 do doomed[#doomed + 1] = hash_of(old[n], old[n + 1]) end
  unlink(doomed)
  return #old / 2, old[#old]
end

local function trim_dead(now, config)
  local gone = trim(dead, now - config.dead_ttl, config.dead_max, function(id, died_at)
    local task = redis.pcall('HMGET', tasks .. id, 'group', 'type')
    leave_group(task[1])
    return is_forgotten(id, task[2], tonumber(died_at), now) and tasks .. id or nil
  end)
  if gone > 0 then redis.call('HINCRBY', counters, 'trimmed', gone) end
  return gone
end

local function trim_done(now, history)
  if not history then return 0 end
  local gone, newest = trim(done, now - history.age, history.most, function(id, ended)
    return trim_record(id, ended, now)
  end)
  if gone > 0 then note_trimmed(settings, newest) end
  return gone
end

local function first_score(set)
  return tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Every reserve runs this maintenance first, each part in a bounded slice: due tasks become waiting, tasks with expired
-- leases return to their position or die, dead tasks past their time are deleted. So no result depends on the leader's
-- last maintenance. Mostly there is nothing to do, so each part is only a check; `foreseen` is then the time of the
-- next work.
local function maintain(now, wanted)
  local config, due, promoted, slice, moved = read_config(now), first_score(scheduled), 0, nil, 0
  if due < now + 1 then promoted, slice = promote(now, wanted, config.is_partitioned) end
  -- Tasks after a full slice of overdue tasks would overtake the remaining overdue ones, so no more than the slice is
  -- handed out.
  config.at_most = config.paused and 0 or promoted == slice and slice or math.huge
  local ends = first_score(pending)
  moved = promoted + (ends <= now and recover_expired(now, config) or 0)
  if moved > 0 then notify_worker(wake) end
  local dies = first_score(dead) + config.dead_ttl
  if dies <= now or config.dead_max > 0 then moved = moved + trim_dead(now, config) end
  if moved == 0 then config.foreseen = math.min(due, ends, dies) end
  if config.history_ms or config.history_max then
    config.history = history_of(config.history_ms, config.history_max)
    moved = moved + trim_done(now, config.history)
  end
  return config, moved
end

-- The time of the queue's next maintenance or of the end of a limit (`lifts`), Unix ms; infinite when neither is
-- foreseen. `config.foreseen` stays true until something is moved.
local function soonest_event(config, lifts)
  local soonest = config.foreseen
    or math.min(first_score(scheduled), first_score(pending), first_score(dead) + config.dead_ttl)
  return math.min(soonest, lifts or math.huge)
end

-- The same for a reply; '' when neither is foreseen.
local function next_event(config, lifts)
  local soonest = soonest_event(config, lifts)
  return soonest < math.huge and exact(soonest) or ''
end
