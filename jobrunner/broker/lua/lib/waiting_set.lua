-- A queue that rotates among keys, or limits each, hands its tasks out by key: there is one line for each key and
-- priority (`partition:<band>:<key>`), and keys take turns (`rotation:<band>`, key → number of its last turn). A task
-- goes to the line of its key when it comes to wait, and stays in `waiting`, its score behind all places. A task that
-- is taken out of `waiting` leaves a stale entry here, which is dropped when a call meets it.
-- A key that may have no more now is in `blocked` in place of a rotation: see partition_limits.lua.

local function line_of(own, band, key) return own .. 'partition:' .. band .. ':' .. key end
local function rotation_of(own, band) return own .. 'rotation:' .. band end
local function band_of(place) return math.max(-1, math.min(math.floor(place / BAND), 1)) end

local function key_of(id)
  local key = redis.pcall('HGET', tasks .. id, 'key')
  return key and not key.err and key or ''
end

local goes_so = {}
-- Whether what comes to wait there is sorted by key: false, or the limits of single keys and the last turn.
local function goes_by_key(own)
  if goes_so[own] == nil then
    local set = redis.call('HMGET', own .. 'settings', 'fair', 'key_inflight', 'key_tokens', 'rotation_seq')
    goes_so[own] = (set[1] or set[2] or set[3]) and {inflight = set[2], tokens = set[3], rotation_seq = set[4]} or false
  end
  return goes_so[own]
end

-- Puts keys into a rotation. Those that hold all they may are blocked: a hand-out would have to look at each of them.
local function join_ring(own, band, keys, set)
  local most, turn = number(set.inflight), set.rotation_seq or 0
  local blocked = (most or set.tokens) and redis.call('ZMSCORE', own .. 'blocked', unpack(keys)) or {}
  local held, entries, full = most and redis.call('HMGET', own .. 'inflight', unpack(keys)) or {}, {}, {}
  for n, key in ipairs(keys) do
    local is_at_limit = most and key ~= '' and (tonumber(held[n]) or 0) >= most
    local into, score = is_at_limit and full or entries, is_at_limit and FAR or turn
    if not blocked[n] then into[#into + 1], into[#into + 2] = score, key end
  end
  if #entries > 0 then redis.call('ZADD', rotation_of(own, band), 'NX', unpack(entries)) end
  call_sliced('ZADD', own .. 'blocked', full)
end

-- Puts tasks, given as place, id, ..., into the lines of their keys; `own` is what the keys of the queue begin with,
-- `set` as of goes_by_key. `keys`: beside the tasks, where the caller knows them.
local function park(own, places, set, keys)
  local lines, parked = {}, {}
  for n = 1, #places / 2 do
    local place, id = math.min(tonumber(places[2 * n - 1]), UNSORTED - 1), places[2 * n]
    local key, band = keys and keys[n] or key_of(id), band_of(place)
    lines[band] = lines[band] or {}
    local entries = lines[band][key] or {}
    entries[#entries + 1], entries[#entries + 2], lines[band][key] = place, id, entries
    parked[2 * n - 1], parked[2 * n] = PARKED + place, id
  end
  for band, of_band in pairs(lines) do
    local all = {}
    for key, entries in pairs(of_band) do
      all[#all + 1] = key
      call_sliced('ZADD', line_of(own, band, key), entries)
    end
    for first = 1, #all, 1000 do join_ring(own, band, {unpack(all, first, math.min(first + 999, #all))}, set) end
  end
  call_sliced('ZADD', own .. 'waiting', parked)
end

-- Puts tasks in line, given as place, id, ... Each way into `waiting` ends here. `by_key` says whether the queue goes
-- by key: as of goes_by_key, or true when no more is known, nil where the caller has not read that.
local function line_up(waiting, places, by_key)
  if #places == 0 then return end
  local own = string.sub(waiting, 1, -8)
  if by_key == nil or by_key == true then by_key = goes_by_key(own) end
  if by_key then park(own, places, by_key) else call_sliced('ZADD', waiting, places) end
end

-- What `park` does, for one task of the default priority whose key is known, without lists.
local function park_one(own, place, id, key, set)
  redis.call('ZADD', own .. 'partition:0:' .. key, place, id)
  redis.call('ZADD', own .. 'waiting', PARKED + place, id)
  if (set.inflight or set.tokens) and redis.call('ZSCORE', own .. 'blocked', key) then return end
  local held = set.inflight and key ~= '' and redis.call('HGET', own .. 'inflight', key)
  if (tonumber(held) or 0) >= (tonumber(set.inflight) or FAR) then
    redis.call('ZADD', own .. 'blocked', FAR, key)
  else
    redis.call('ZADD', own .. 'rotation:0', 'NX', set.rotation_seq or 0, key)
  end
end

-- Where a task joins a queue: the set, its score there, and its place in line.
local function join(waiting, scheduled, arrival, priority, due, now)
  if due > now then
    due = slot_at(scheduled, due)
    return scheduled, due, place_of(priority, due)
  end
  local arrived = arrival_after(tonumber(redis.call('GET', arrival)) or 0, now)
  redis.call('SET', arrival, exact(arrived))
  local place = place_of(priority, arrived)
  return waiting, place, place
end

-- Puts it there; a line may be sorted by key.
local function stand(set, score, id, by_key)
  if string.sub(set, -8) == ':waiting' then
    line_up(set, {score, id}, by_key)
  else
    redis.call('ZADD', set, score, id)
  end
end

-- Makes one new task: its hash, its place in line or in the schedule, the count, a hint to an idle worker.
local function enter(id, priority, due, now, words)
  local set, score, place = join(waiting, scheduled, arrival, priority, due, now)
  redis.call('HSET', tasks .. id, 'id', id, 'place', place, 'enqueue_time', exact(now), 'retry_count', 0,
    unpack(words))
  if due > now then redis.call('HSET', tasks .. id, 'more', 1) end
  stand(set, score, id)
  redis.call('HINCRBY', counters, 'enqueued', 1)
  wake_one(wake)
end

-- Back to their places in line, no attempt spent.
local function put_back(ids, now)
  local places = {}
  for _, one in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. one, 'id', 'place')
    if task.err or not task[1] then
      drop(one)
    else
      places[#places + 1], places[#places + 2] = number(task[2]) or now, one
    end
  end
  line_up(waiting, places)
  if #places > 0 then wake_one(wake) end
end

-- Several queues that a script adds tasks to. Their keys stand in KEYS from `first` on, six each: waiting, scheduled,
-- settings, counters, arrival, wake.
local function read_targets(first)
  local targets = {}
  for at = first, #KEYS, 6 do
    local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS, at, at + 5)
    targets[#targets + 1] = {scheduled = scheduled, waiting = waiting, counters = counters, arrival = arrival,
      wake = wake, room = room_in(settings, waiting, scheduled), last = tonumber(redis.call('GET', arrival)) or 0,
      is_empty = redis.call('ZCARD', waiting) + redis.call('ZCARD', scheduled) == 0,
      ready = {}, total = 0, in_need = 0}
  end
  return targets
end

-- Puts what is `ready`, as place, id, ..., in line.
local function fill_targets(targets)
  for _, target in ipairs(targets) do
    if #target.ready > 0 then
      redis.call('SET', target.arrival, exact(target.last))
      line_up(target.waiting, target.ready)
    end
    if target.total > 0 then
      redis.call('HINCRBY', target.counters, 'enqueued', target.total)
      wake_one(target.wake)
    end
  end
end
