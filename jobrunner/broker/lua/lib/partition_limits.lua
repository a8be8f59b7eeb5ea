-- Limits of single partitions: leases at a time, and a token bucket each. Tasks without a partition ('') have none.
-- `inflight` counts the leases of each partition; free_partitions in task_leases.lua takes off those that end.
-- A partition at a limit is in `blocked`, with the time of its next token, or behind all times when it holds as many
-- leases as it may.
local function read_partition(prefix, partition, inflight, limits, now, counts_leases)
  local capacity = counts_leases and limits.key_inflight - (tonumber(inflight) or 0) or math.huge
  local bucket = limits.key_tokens
    and read_bucket(prefix .. 'bucket:' .. partition, limits.key_tokens, limits.key_interval, now)
  return {capacity = capacity, bucket = bucket or nil, inflight = tonumber(inflight) or 0, used = 0}
end

-- The limits of partitions as a table of functions: `read` reads those of some partitions, `capacity_of` says how many
-- tasks one may hand out, `use` changes that, `frees_at` is the score in `blocked` of one at a limit, and `write`
-- stores the limits and which tasks got a lease.
local function read_partition_limits(prefix, limits, now, are_leased)
  local known, counts_leases = {}, are_leased and limits.key_inflight > 0
  local function read(partitions)
    local new = {}
    for _, partition in ipairs(partitions) do
      if not known[partition] then new[#new + 1] = partition end
    end
    local inflight = counts_leases and #new > 0 and redis.call('HMGET', prefix .. 'inflight', unpack(new)) or {}
    for n, partition in ipairs(new) do
      known[partition] = read_partition(prefix, partition, inflight[n], limits, now, counts_leases)
    end
  end
  local function capacity_of(partition)
    return partition == '' and math.huge or math.min(known[partition].capacity, whole_tokens(known[partition].bucket))
  end
  local function use(partition, count)
    local known_one = known[partition]
    known_one.capacity, known_one.used = known_one.capacity - count, known_one.used + count
    if known_one.bucket then known_one.bucket.level = known_one.bucket.level - count * known_one.bucket.interval end
  end
  local function frees_at(partition)
    return known[partition].capacity < 1 and FAR or refills_at(known[partition].bucket, now)
  end
  local function write(holders)
    local counts = {}
    for partition, known_one in pairs(known) do
      if known_one.bucket and known_one.used > 0 then
        save(known_one.bucket)
        redis.call('PEXPIRE', known_one.bucket.name, exact(math.ceil(known_one.bucket.interval / 500)))
      end
      if counts_leases and partition ~= '' and known_one.used > 0 then
        counts[#counts + 1], counts[#counts + 2] = partition, known_one.inflight + known_one.used
      end
    end
    if not counts_leases then return end
    call_sliced('HSET', prefix .. 'inflight', counts)
    call_sliced('HSET', prefix .. 'holders', holders)
  end
  return {read = read, capacity_of = capacity_of, use = use, frees_at = frees_at, write = write,
    counts_leases = counts_leases}
end

-- Compares a few counted leases with `pending`: an older version may have ended them without counting them off.
local function recount_some(prefix)
  local some, stale = redis.call('HRANDFIELD', prefix .. 'holders', 3), {}
  if #some == 0 then return end
  for n, lease_end in ipairs(redis.call('ZMSCORE', pending, unpack(some))) do
    if not lease_end then stale[#stale + 1] = some[n] end
  end
  free_partitions(stale)
end

-- Partitions at a limit leave the rotations, so that a reserve reads only partitions that may hand out a task. They
-- return when their time has come, when a lease of theirs ends (score 0), or when the limits were changed: then all of
-- them are `unsure` and are checked slice by slice.
local UNBLOCKED_SLICE = 100

local function check_partitions(prefix, partitions, limiter, turn)
  limiter.read(partitions)
  local free, blocked, rotations = {}, {}, {[-1] = {}, [0] = {}, [1] = {}}
  for _, partition in ipairs(partitions) do
    local has_capacity, has_tasks = limiter.capacity_of(partition) >= 1, false
    for band, rotation in pairs(rotations) do
      if redis.call('EXISTS', partition_key(prefix, band, partition)) == 1 then
        has_tasks = true
        if has_capacity then rotation[#rotation + 1], rotation[#rotation + 2] = turn, partition end
      end
    end
    if has_tasks and not has_capacity then
      blocked[#blocked + 1], blocked[#blocked + 2] = exact(limiter.frees_at(partition)), partition
    else
      free[#free + 1] = partition
    end
  end
  for band, rotation in pairs(rotations) do
    if #rotation > 0 then redis.call('ZADD', rotation_key(prefix, band), 'NX', unpack(rotation)) end
  end
  call_sliced('ZADD', prefix .. 'blocked', blocked)
  call_sliced('ZREM', prefix .. 'blocked', free)
end

-- Returns a bounded slice of unblocked partitions to their rotations. Returns whether there may be more.
local function unblock_partitions(prefix, limits, limiter, wanted, now, turn, are_leased)
  local blocked, unsure = prefix .. 'blocked', prefix .. 'unsure'
  if limits.recheck and redis.call('EXISTS', unsure) == 0 then
    if redis.call('EXISTS', blocked) == 1 then redis.call('RENAME', blocked, unsure) end
    redis.call('HDEL', settings, 'recheck')
  end
  local slice = math.max(UNBLOCKED_SLICE, math.min(wanted, SLICE))
  local due = redis.call('ZRANGEBYSCORE', blocked, '-inf', exact(now), 'LIMIT', 0, slice)
  if limits.key_tokens and #due < slice then  -- no token is further away than this, unless the clock stepped back
    local latest = now + math.max(limits.key_interval / limits.key_tokens, SHORTEST_WAIT_US) / 1000
    local above, most = '(' .. exact(latest), slice - #due
    local early = redis.call('ZRANGEBYSCORE', blocked, above, '(' .. exact(FAR), 'LIMIT', 0, most)
    for _, partition in ipairs(early) do due[#due + 1] = partition end
  end
  check_partitions(prefix, due, limiter, turn)
  local old = redis.call('ZRANGE', unsure, 0, math.max(slice - #due, UNBLOCKED_SLICE) - 1)
  check_partitions(prefix, old, limiter, turn)
  call_sliced('ZREM', unsure, old)
  -- A pop takes no lease, so the count of leases keeps no partition out.
  local held = are_leased and {} or redis.call('ZRANGEBYSCORE', blocked, exact(FAR), '+inf', 'LIMIT', 0, slice)
  check_partitions(prefix, held, limiter, turn)
  return #due == slice or #old >= UNBLOCKED_SLICE or #held == slice
end

-- When the next partition has a token again, Unix ms.
local function unblocks_at(prefix, now)
  local first = redis.call('ZRANGE', prefix .. 'blocked', 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) >= FAR then return math.huge end
  return math.max(tonumber(first), now + SHORTEST_WAIT_US / 1000)
end

-- Removes a waiting task from its partition before it leaves `waiting` other than by its turn, or gets another place
-- there, perhaps in another partition. (The score in `waiting` is exact only to 1/64 ms: if both places are within it,
-- both partitions would hand the task out.) `left` notes the partition for settle_partitions.
local function take_off_partition(prefix, id, score, left)
  if score < UNPARTITIONED then return end
  local band, partition = band_of(score - PARTITIONED), partition_of(id)
  redis.call('ZREM', partition_key(prefix, band, partition), id)
  left[band] = left[band] or {}
  left[band][partition] = true
end

-- A partition without tasks loses its turn, and is blocked no more: the next task of it checks its limits.
local function settle_partitions(prefix, left)
  local idle = {}
  for band, partitions in pairs(left) do
    local empty = {}
    for partition in pairs(partitions) do
      local indexes = redis.call('EXISTS', partition_key(prefix, -1, partition), partition_key(prefix, 0, partition),
        partition_key(prefix, 1, partition))
      if indexes == 0 then idle[#idle + 1] = partition end
      local has_tasks = indexes > 0 and redis.call('EXISTS', partition_key(prefix, band, partition)) == 1
      if not has_tasks then empty[#empty + 1] = partition end
    end
    call_sliced('ZREM', rotation_key(prefix, band), empty)
  end
  for _, set in ipairs({'blocked', 'unsure'}) do call_sliced('ZREM', prefix .. set, idle) end
end

local function leave_partition(prefix, id, keeps_turn)  -- `keeps_turn`: the task is about to return
  local left = {}
  take_off_partition(prefix, id, tonumber(redis.call('ZSCORE', prefix .. 'waiting', id) or 0), left)
  if not keeps_turn then settle_partitions(prefix, left) end
end
