-- Tells one idle worker, when something left a queue that hands out no more than so many at a time.
local function wake_if_capped(wake)
  if redis.call('HEXISTS', settings, 'max_inflight') == 1 then wake_one(wake) end
end
