-- Limits of single partitions: leases at a time, and a token bucket each. Tasks without a partition ('') have none.
-- `inflight` counts the leases of each partition; free_keys in task_leases.lua takes off those that end.
-- A partition at a limit is in `blocked`, with the time of its next token, or behind all times when it holds as many
-- leases as it may.
local function read_one(own, key, held, limits, now, holds)
  local room = holds and limits.key_inflight - (tonumber(held) or 0) or math.huge
  local bucket = limits.key_tokens and read_bucket(own .. 'bucket:' .. key, limits.key_tokens, limits.key_interval, now)
  return {room = room, bucket = bucket or nil, held = tonumber(held) or 0, used = 0}
end

-- A function for each: `read` has the rooms of keys at hand, `of` is that of one, `use` and `unuse` change it by one,
-- `frees_at` is the score in `blocked` of one without room, and `write` writes them, with the ids that got a lease.
local function read_rooms(own, limits, now, are_leased)
  local seen, holds = {}, are_leased and limits.key_inflight > 0
  local function read(keys)
    local new = {}
    for _, key in ipairs(keys) do
      if not seen[key] then new[#new + 1] = key end
    end
    local held = holds and #new > 0 and redis.call('HMGET', own .. 'inflight', unpack(new)) or {}
    for n, key in ipairs(new) do seen[key] = read_one(own, key, held[n], limits, now, holds) end
  end
  local function of(key)
    return key == '' and math.huge or math.min(seen[key].room, whole_tokens(seen[key].bucket))
  end
  local function use(key, count)
    local one = seen[key]
    one.room, one.used = one.room - count, one.used + count
    if one.bucket then one.bucket.level = one.bucket.level - count * one.bucket.interval end
  end
  local function frees_at(key)
    return seen[key].room < 1 and FAR or refills_at(seen[key].bucket, now)
  end
  local function write(holders)
    local inflight = {}
    for key, one in pairs(seen) do
      if one.bucket and one.used > 0 then
        save(one.bucket)
        redis.call('PEXPIRE', one.bucket.name, exact(math.ceil(one.bucket.interval / 500)))
      end
      if holds and key ~= '' and one.used > 0 then
        inflight[#inflight + 1], inflight[#inflight + 2] = key, one.held + one.used
      end
    end
    if not holds then return end
    call_sliced('HSET', own .. 'inflight', inflight)
    call_sliced('HSET', own .. 'holders', holders)
  end
  return {read = read, of = of, use = use, frees_at = frees_at, write = write, holds = holds}
end

-- A few tasks that count as held are compared with what is pending: an older version may have ended their leases.
local function compare_some(own)
  local some, stale = redis.call('HRANDFIELD', own .. 'holders', -3), {}
  if #some == 0 then return end
  for n, lease_end in ipairs(redis.call('ZMSCORE', pending, unpack(some))) do
    if not lease_end then stale[#stale + 1] = some[n] end
  end
  free_keys(stale)
end

-- Partitions at a limit leave the rotations, so that a reserve reads only partitions that may hand out a task. They
-- return when their time has come, when a lease of theirs ends (score 0), or when the limits were changed: then all of
-- them are `unsure` and are checked slice by slice.
local FREED_SLICE = 100

local function judge_keys(own, keys, rooms, turn)
  rooms.read(keys)
  local free, blocked, rotations = {}, {}, {[-1] = {}, [0] = {}, [1] = {}}
  for _, key in ipairs(keys) do
    local has_room, is_there = rooms.of(key) >= 1, false
    for band, rotation in pairs(rotations) do
      if redis.call('EXISTS', line_of(own, band, key)) == 1 then
        is_there = true
        if has_room then rotation[#rotation + 1], rotation[#rotation + 2] = turn, key end
      end
    end
    if is_there and not has_room then
      blocked[#blocked + 1], blocked[#blocked + 2] = exact(rooms.frees_at(key)), key
    else
      free[#free + 1] = key
    end
  end
  for band, rotation in pairs(rotations) do
    if #rotation > 0 then redis.call('ZADD', rotation_of(own, band), 'NX', unpack(rotation)) end
  end
  call_sliced('ZADD', own .. 'blocked', blocked)
  call_sliced('ZREM', own .. 'blocked', free)
end

-- Brings a bounded slice of the keys that have room again back to their rotations. Returns whether there may be more.
local function unblock(own, limits, rooms, wanted, now, turn, are_leased)
  local blocked, unsure = own .. 'blocked', own .. 'unsure'
  if limits.recheck and redis.call('EXISTS', unsure) == 0 then
    if redis.call('EXISTS', blocked) == 1 then redis.call('RENAME', blocked, unsure) end
    redis.call('HDEL', settings, 'recheck')
  end
  local slice = math.max(FREED_SLICE, math.min(wanted, SLICE))
  local due = redis.call('ZRANGEBYSCORE', blocked, '-inf', exact(now), 'LIMIT', 0, slice)
  judge_keys(own, due, rooms, turn)
  local old = redis.call('ZRANGE', unsure, 0, math.max(slice - #due, FREED_SLICE) - 1)
  judge_keys(own, old, rooms, turn)
  call_sliced('ZREM', unsure, old)
  -- A pop takes no lease, so what a key holds does not keep it out.
  if not are_leased then
    judge_keys(own, redis.call('ZRANGEBYSCORE', blocked, exact(FAR), '+inf', 'LIMIT', 0, slice), rooms, turn)
  end
  return #due == slice or #old >= FREED_SLICE
end

-- When the next key has a token again, Unix ms.
local function unblocks_at(own, now)
  local first = redis.call('ZRANGE', own .. 'blocked', 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) >= FAR then return math.huge end
  return math.max(tonumber(first), now + SHORTEST_LOOK_US / 1000)
end
