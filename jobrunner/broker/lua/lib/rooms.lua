-- The limits of single keys: leases at a time, and a token bucket each. What a key holds is what of its hand-outs is
-- still pending, so no report needs to know of keys. Tasks without a key (key '') have no such limit.
local HELD_KEEP_S = 604800

local function held_by(key)
  local held, count = base .. 'held:' .. key, 0
  for _, id in ipairs(redis.call('ZRANGE', held, 0, -1)) do
    if redis.call('ZSCORE', pending, id) then count = count + 1 else redis.call('ZREM', held, id) end
  end
  return count
end

-- {of: room of a key, note: hears who got one, pay: at the end, lifts: when a key's rate lifts, Unix ms}
local function read_rooms(limits, now, are_leased)
  local rooms, buckets, spent, lifts = {}, {}, {}, math.huge
  local function of(key)
    if key == '' then return math.huge end
    if not rooms[key] then
      local read = read_bucket(base .. 'bucket:' .. key, limits.key_tokens, limits.key_interval, now)
      local room = whole_tokens(read)
      if are_leased and limits.key_inflight > 0 then room = math.min(room, limits.key_inflight - held_by(key)) end
      rooms[key], buckets[key], spent[key] = room, read, 0
      lifts = math.min(lifts, refills_at(read, now))
    end
    return rooms[key] - spent[key]
  end
  local function note(key, id)
    if key == '' then return end
    spent[key] = spent[key] + 1
    if are_leased and limits.key_inflight > 0 then
      redis.call('ZADD', base .. 'held:' .. key, now, id)
      redis.call('EXPIRE', base .. 'held:' .. key, HELD_KEEP_S)
    end
  end
  local function pay_all()
    for key, read in pairs(buckets) do
      pay(read, spent[key])
      lifts = math.min(lifts, refills_at(read, now))
      if spent[key] > 0 then redis.call('PEXPIRE', read.name, exact(math.ceil(read.interval / 500))) end
    end
    return lifts
  end
  return {of = of, note = note, pay = pay_all}
end
