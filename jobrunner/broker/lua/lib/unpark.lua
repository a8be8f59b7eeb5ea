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
