-- Tells one idle worker that there may be work. A hint: one member at most, and polling is the guarantee.
local function wake_one(wake)
  redis.call('ZADD', wake, 0, '1')
end
