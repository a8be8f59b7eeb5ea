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

-- A queue that went by key once and does not any more: what is sorted by key goes back to its place in line, the first
-- ones first and before anything is handed out, so that old and new keep the order of the line.
local function unpark(own, most)
  local first = redis.call('ZRANGEBYSCORE', waiting, exact(UNSORTED), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  if #first == 0 then
    redis.call('HDEL', settings, 'parked', 'recheck', 'rotation_seq')
    redis.call('UNLINK', own .. 'blocked', own .. 'unsure')
    for band = -1, 1 do redis.call('UNLINK', rotation_of(own, band)) end
    return
  end
  local places = {}
  for i = 1, #first, 2 do
    local id, place, key = first[i], first[i + 1] - PARKED, key_of(first[i])
    local line = line_of(own, band_of(place), key)
    redis.call('ZREM', line, id)
    -- What is parked has lost the last digits of its place; the hash has them all.
    local noted = number(redis.call('HGET', tasks .. id, 'place'))
    places[i], places[i + 1] = noted and math.abs(noted - place) < 1 and noted or place, id
  end
  call_sliced('ZADD', waiting, places)
end

local function walk_within(limits, wanted, take, now, are_leased)
  local read = read_bucket(bucket, limits.max_tokens, limits.interval, now)
  wanted = math.min(wanted, whole_tokens(read))
  local taken, is_cut_short, lifts = 0, false, limits.paused and limits.resumes or math.huge
  local own = string.sub(waiting, 1, -8)
  if limits.by_key then
    local rooms = read_rooms(own, limits, now, are_leased)
    taken, is_cut_short = walk_ring(own, limits, rooms, wanted, take, now, are_leased)
    if not limits.paused then lifts = math.min(lifts, unblocks_at(own, now)) end
  elseif limits.parked and wanted > 0 then
    local most = math.min(wanted, SLICE)
    write_even_when_full()
    unpark(own, most + SLICE)
    taken, is_cut_short = walk_line(most, take)
    is_cut_short = is_cut_short or taken == most and most < wanted
  else
    taken, is_cut_short = walk_line(wanted, take)
  end
  pay(read, taken)
  if limits.capacity_wanted and limits.capacity_wanted > now and taken > 0 then hint_room(wake) end
  if not limits.paused then lifts = math.min(lifts, refills_at(read, now)) end
  return taken, is_cut_short, lifts
end

-- Hands out up to `wanted` tasks by `take`, within the rate of the queue, in line or by key as it is set. Returns how
-- many, whether the bound on one call ended it, and when a limit lifts, Unix ms.
local function walk(limits, wanted, take, now, are_leased)
  if limits.by_key and redis.call('ZCARD', waiting) == 0 then return 0, false, math.huge end
  if limits.paused or limits.max_tokens or limits.by_key or limits.capacity_wanted or limits.parked then
    return walk_within(limits, wanted, take, now, are_leased)
  end
  local taken, is_cut_short = walk_line(wanted, take)
  return taken, is_cut_short, math.huge
end
