-- How many more tasks the queue may hold, waiting and scheduled together. `room_wanted`: until when somebody waits for
-- room, Unix ms; nil where nobody does.
local room_wanted
local function room_in(settings, waiting, scheduled)
  local set = redis.call('HMGET', settings, 'max_size', 'room_wanted')
  local most = set[1] and number(set[1])
  room_wanted = most and number(set[2])
  return most and most - redis.call('ZCARD', waiting) - redis.call('ZCARD', scheduled) or math.huge
end

-- Whether so many more would be above that.
local function is_full(settings, waiting, scheduled, more)
  return more > 0 and more > room_in(settings, waiting, scheduled)
end
