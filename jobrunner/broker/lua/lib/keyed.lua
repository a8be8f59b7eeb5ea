-- A queue that rotates among keys, or limits each, hands its tasks out by key: what is first in line is sorted into one
-- line for each key and priority (`keyed:<band>:<key>`), and keys take turns (`ring:<band>`, key → number of its last
-- turn). A task in such a line stays in `waiting`, with a score behind all places. What other scripts take out of
-- `waiting`, or put back, makes its entry here stale, and stale entries are dropped when they are met.
local PARKED, UNSORTED = 70368744177664, 35184372088832
local base = string.sub(waiting, 1, -8)

local function line_of(band, key) return base .. 'keyed:' .. band .. ':' .. key end
local function ring_of(band) return base .. 'ring:' .. band end

-- Sorts a bounded slice in. Returns whether there may be more.
local function sort_in(turn)
  local first = redis.call('ZRANGEBYSCORE', waiting, '-inf', '(' .. exact(UNSORTED), 'WITHSCORES', 'LIMIT', 0, SLICE)
  local parked = {}
  for i = 1, #first, 2 do
    local id, place = first[i], tonumber(first[i + 1])
    local key, band = redis.pcall('HGET', tasks .. id, 'key'), math.floor(place / BAND)
    if not key or key.err then key = '' end
    redis.call('ZADD', line_of(band, key), exact(place), id)
    redis.call('ZADD', ring_of(band), 'NX', turn, key)
    parked[i], parked[i + 1] = exact(PARKED + place), id
  end
  call_sliced('ZADD', waiting, parked)
  return #first == 2 * SLICE
end

-- Takes the first task of a key out of its line; false when there is none.
local function next_of(band, key)
  for _ = 1, SLICE do
    local id = redis.call('ZRANGE', line_of(band, key), 0, 0)[1]
    if not id then
      redis.call('ZREM', ring_of(band), key)
      return false
    end
    redis.call('ZREM', line_of(band, key), id)
    local score = redis.call('ZSCORE', waiting, id)
    if score and tonumber(score) > UNSORTED then return id end
  end
  return false
end

-- Like walk_line, but key after key; `room_of` says whether a key may have one more, `note` hears who got one.
local function walk_ring(wanted, take, room_of, note)
  if wanted <= 0 then return 0, false end
  write_even_when_full()
  local turn = tonumber(redis.call('GET', base .. 'turn')) or 0
  local is_cut_short, taken = sort_in(turn), 0
  for band = -1, 1 do
    repeat
      local before = taken
      for _, key in ipairs(redis.call('ZRANGE', ring_of(band), 0, SLICE - 1)) do
        if taken >= wanted then break end
        local id = room_of(key) >= 1 and next_of(band, key)
        turn = turn + 1
        if id or redis.call('ZSCORE', ring_of(band), key) then redis.call('ZADD', ring_of(band), turn, key) end
        local was_fit = id and take({id}) or 0
        if id then redis.call('ZREM', waiting, id) end
        if was_fit > 0 then note(key, id) end
        taken = taken + was_fit
      end
    until taken == before or taken >= wanted
  end
  redis.call('SET', base .. 'turn', turn)
  return taken, is_cut_short and taken < wanted
end
