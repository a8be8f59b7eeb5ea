-- Whether so many more tasks would be above what the queue may hold, waiting and scheduled together.
local function is_full(settings, waiting, scheduled, more)
  local most = number(redis.call('HGET', settings, 'max_size'))
  return most and more > 0 and redis.call('ZCARD', waiting) + redis.call('ZCARD', scheduled) + more > most
end
