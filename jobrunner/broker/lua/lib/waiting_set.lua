-- A queue that rotates among partitions, or limits each, hands its tasks out by partition: there is one set for each
-- partition and priority band (`partition:<band>:<partition>`), and partitions take turns (`rotation:<band>`, partition
-- → number of its last turn). A task is added to its partition when it becomes waiting, and stays in `waiting`, with a
-- score above all places. A task that is taken out of `waiting` leaves its partition, too; versions before left a stale
-- entry, which is dropped when it is read. A partition at a limit is in `blocked` instead of a rotation: see
-- partition_limits.lua.

local function partition_key(prefix, band, partition) return prefix .. 'partition:' .. band .. ':' .. partition end
local function rotation_key(prefix, band) return prefix .. 'rotation:' .. band end
local function band_of(place) return math.max(-1, math.min(math.floor(place / BAND), 1)) end

local function partition_of(id)
  local partition = redis.pcall('HGET', tasks .. id, 'key')
  return partition and not partition.err and partition or ''
end

local known_partitionings = {}
-- Whether a queue has partitions: false, or their limits and the last turn.
local function partitioning_of(prefix)
  if known_partitionings[prefix] == nil then
    local set = redis.call('HMGET', prefix .. 'settings', 'fair', 'key_inflight', 'key_tokens', 'rotation_seq')
    local found = {inflight = set[2], tokens = set[3], rotation_seq = set[4]}
    known_partitionings[prefix] = (set[1] or set[2] or set[3]) and found or false
  end
  return known_partitionings[prefix]
end

-- Adds partitions to a rotation. Those at their limit of leases are blocked: a reserve would read each of them.
local function join_rotation(prefix, band, partitions, set)
  local most, turn = number(set.inflight), set.rotation_seq or 0
  local blocked = (most or set.tokens) and redis.call('ZMSCORE', prefix .. 'blocked', unpack(partitions)) or {}
  local inflight = most and redis.call('HMGET', prefix .. 'inflight', unpack(partitions)) or {}
  local entries, at_limit = {}, {}
  for n, partition in ipairs(partitions) do
    local is_at_limit = most and partition ~= '' and (tonumber(inflight[n]) or 0) >= most
    local into, score = is_at_limit and at_limit or entries, is_at_limit and FAR or turn
    if not blocked[n] then into[#into + 1], into[#into + 2] = score, partition end
  end
  if #entries > 0 then redis.call('ZADD', rotation_key(prefix, band), 'NX', unpack(entries)) end
  call_sliced('ZADD', prefix .. 'blocked', at_limit)
end

-- Adds tasks, passed as place, id, ..., to their partitions; `prefix` is that of the queue's keys, `set` the result of
-- partitioning_of. `partitions`: the partition of each task, if the caller knows them.
local function add_to_partitions(prefix, places, set, partitions)
  local by_band, parked = {}, {}
  for n = 1, #places / 2 do
    local place, id = math.min(tonumber(places[2 * n - 1]), UNPARTITIONED - 1), places[2 * n]
    local partition, band = partitions and partitions[n] or partition_of(id), band_of(place)
    by_band[band] = by_band[band] or {}
    local entries = by_band[band][partition] or {}
    entries[#entries + 1], entries[#entries + 2], by_band[band][partition] = place, id, entries
    parked[2 * n - 1], parked[2 * n] = PARTITIONED + place, id
  end
  for band, of_band in pairs(by_band) do
    local names = {}
    for partition, entries in pairs(of_band) do
      names[#names + 1] = partition
      call_sliced('ZADD', partition_key(prefix, band, partition), entries)
    end
    for first = 1, #names, 1000 do
      join_rotation(prefix, band, {unpack(names, first, math.min(first + 999, #names))}, set)
    end
  end
  call_sliced('ZADD', prefix .. 'waiting', parked)
end

-- Adds tasks, passed as place, id, ..., to `waiting`; every transition into that set ends here. `by_partition`: the
-- result of partitioning_of; true when the caller only knows that the queue has partitions; nil when it has not read
-- that either.
local function add_waiting(waiting, places, by_partition)
  if #places == 0 then return end
  local prefix = string.sub(waiting, 1, -8)
  if by_partition == nil or by_partition == true then by_partition = partitioning_of(prefix) end
  if by_partition then add_to_partitions(prefix, places, by_partition) else call_sliced('ZADD', waiting, places) end
end

-- add_waiting for one task of the default priority whose partition is known, without lists.
local function add_to_partition(prefix, place, id, partition, set)
  redis.call('ZADD', prefix .. 'partition:0:' .. partition, place, id)
  redis.call('ZADD', prefix .. 'waiting', PARTITIONED + place, id)
  if (set.inflight or set.tokens) and redis.call('ZSCORE', prefix .. 'blocked', partition) then return end
  local inflight = set.inflight and partition ~= '' and redis.call('HGET', prefix .. 'inflight', partition)
  if (tonumber(inflight) or 0) >= (tonumber(set.inflight) or FAR) then
    redis.call('ZADD', prefix .. 'blocked', FAR, partition)
  else
    redis.call('ZADD', prefix .. 'rotation:0', 'NX', set.rotation_seq or 0, partition)
  end
end

-- The position at which a task enters a queue: the set, its score there, and its place.
local function position_for(waiting, scheduled, arrival, priority, due, now)
  if due > now then
    due = slot_at(scheduled, due)
    return scheduled, due, place_of(priority, due)
  end
  local arrived = arrival_after(tonumber(redis.call('GET', arrival)) or 0, now)
  redis.call('SET', arrival, exact(arrived))
  local place = place_of(priority, arrived)
  return waiting, place, place
end

-- Adds a task at that position.
local function insert(set, score, id, by_partition)
  if string.sub(set, -8) == ':waiting' then
    add_waiting(set, {score, id}, by_partition)
  else
    redis.call('ZADD', set, score, id)
  end
end

-- Creates one task: its hash, its position in `waiting` or `scheduled`, the count, a hint to an idle worker.
local function create_task(id, priority, due, now, words)
  local set, score, place = position_for(waiting, scheduled, arrival, priority, due, now)
  redis.call('HSET', tasks .. id, 'id', id, 'place', place, 'enqueue_time', exact(now), 'retry_count', 0,
    unpack(words))
  if due > now then redis.call('HSET', tasks .. id, 'more', 1) end
  insert(set, score, id)
  redis.call('HINCRBY', counters, 'enqueued', 1)
  notify_worker(wake)
end

-- Further queues to which a script adds tasks. KEYS from `first` on has six keys of each: waiting, scheduled, settings,
-- counters, arrival, wake.
local function read_targets(first)
  local targets = {}
  for at = first, #KEYS, 6 do
    local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS, at, at + 5)
    targets[#targets + 1] = {scheduled = scheduled, waiting = waiting, counters = counters, arrival = arrival,
      wake = wake, capacity = capacity_left(settings, waiting, scheduled),
      last = tonumber(redis.call('GET', arrival)) or 0,
      is_empty = redis.call('ZCARD', waiting) + redis.call('ZCARD', scheduled) == 0,
      ready = {}, total = 0, in_need = 0}
  end
  return targets
end

-- Adds the `ready` tasks of each queue to it.
local function fill_targets(targets)
  for _, target in ipairs(targets) do
    if #target.ready > 0 then
      redis.call('SET', target.arrival, exact(target.last))
      add_waiting(target.waiting, target.ready)
    end
    if target.total > 0 then
      redis.call('HINCRBY', target.counters, 'enqueued', target.total)
      notify_worker(target.wake)
    end
  end
end
