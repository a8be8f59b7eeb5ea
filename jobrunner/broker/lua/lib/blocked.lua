-- Keys whose limit keeps them from a turn. They leave the rotations, so a hand-out meets keys that may have a task. They
-- come back when their time has come, when a report says so (score 0), or when the limits were changed: then all are
-- `unsure`, and judged by the slice.
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
