-- Tells who waits for the end of a task, if anyone does. Returns whether.
local function tell_waiting(id, outcome)
  if redis.call('ZREM', waiters, id) == 0 then return false end
  redis.call('PUBLISH', finished .. id, outcome)
  return true
end
