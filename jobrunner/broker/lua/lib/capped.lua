-- Tells one idle worker, when something left a queue that hands out no more than so many at a time.
local function wake_if_capped(wake)
  local set = redis.call('HMGET', settings, 'max_inflight', 'key_inflight')
  if set[1] or set[2] then wake_one(wake) end
end
