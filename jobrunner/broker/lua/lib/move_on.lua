-- The member goes on as the same item: attempts and failures start anew, total_attempts and hops go on.
local function move_on(one, task, target, payload, more, now)
  local key, priority = tasks .. one, more.priority or task.priority
  local place = put_into(target, one, priority or '', more.delay_ms or 0, now)
  local words = {'HSET', key, 'queue', target.name, 'place', place, 'payload', payload, 'encoding', 'json',
    'retry_count', 0, 'hops', task.hops, 'total_attempts', task.attempts, 'more', 1}
  for _, field in ipairs({'priority', 'type'}) do
    if more[field] then words[#words + 1], words[#words + 2] = field, more[field] end
  end
  if more.headers then
    words[#words + 1], words[#words + 2] = 'headers', merged(redis.call('HGET', key, 'headers'), more.headers)
  end
  redis.call(unpack(words))
  if task.is_marked then redis.call('HDEL', key, 'error', 'expiries') end
  target.moved_in = target.moved_in + 1
end
