-- How many more tasks the queue may hold, waiting and scheduled together. `capacity_wanted`: until when a producer waits
-- for capacity, Unix ms, or nil. `by_key`: false when its waiting tasks are not sorted by key, else the settings that
-- `line_up` needs.
local capacity_wanted
local by_key
local function room_in(settings, waiting, scheduled)
  local set = redis.call('HMGET', settings, 'max_size', 'capacity_wanted', 'fair', 'key_inflight', 'key_tokens',
    'rotation_seq')
  by_key = (set[3] or set[4] or set[5]) and {inflight = set[4], tokens = set[5], rotation_seq = set[6]} or false
  local most = set[1] and number(set[1])
  capacity_wanted = most and number(set[2])
  return most and most - redis.call('ZCARD', waiting) - redis.call('ZCARD', scheduled) or math.huge
end

-- Whether so many more would be above that.
local function is_full(settings, waiting, scheduled, more)
  return more > 0 and more > room_in(settings, waiting, scheduled)
end
