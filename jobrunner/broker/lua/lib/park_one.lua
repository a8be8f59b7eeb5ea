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
