-- How many more tasks the queue may hold, waiting and scheduled together.
local function room_in(settings, waiting, scheduled)
  local most = number(redis.call('HGET', settings, 'max_size'))
  return most and most - redis.call('ZCARD', waiting) - redis.call('ZCARD', scheduled) or math.huge
end

-- Whether so many more would be above that.
local function is_full(settings, waiting, scheduled, more)
  return more > 0 and more > room_in(settings, waiting, scheduled)
end
