-- The limits of single keys: leases at a time, and a token bucket each. Tasks without a key (key '') have no such limit.
-- What a key holds is counted in `inflight`; reports and leases that end give it back (freed.lua).
-- A key without room is in `blocked`, with the time of its next token, or behind all times while it holds too many.
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
