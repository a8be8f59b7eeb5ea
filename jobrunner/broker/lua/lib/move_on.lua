-- The member goes on as the same item: attempts and failures start anew, total_attempts and hops go on. Fields that say
-- so already are not written: a hash is small, and each write of a field moves what is behind it.
local MOVED_FIELDS = {'id', 'retry_count', 'total_attempts', 'hops', 'priority', 'encoding', 'more', 'error',
  'expiries', 'cancel_requested'}
local moving = {'HSET', '', 'queue', '', 'place', 0, 'payload', '', 'hops', 0, 'total_attempts', 0}
local moving_fixed = #moving

local function read_moving(one)
  return redis.pcall('HMGET', tasks .. one, unpack(MOVED_FIELDS))
end

local function move_on(one, task, line, payload, more, hops, attempts, now)
  local key, width = tasks .. one, moving_fixed
  moving[2], moving[4], moving[8], moving[10] = key, line.name, payload, hops
  moving[6] = put_into(line, one, more.priority or task[5] or '', more.delay_ms or 0, now)
  moving[12] = (number(task[3]) or 0) + attempts
  if task[2] ~= '0' then moving[width + 1], moving[width + 2], width = 'retry_count', 0, width + 2 end
  if task[6] ~= 'json' then moving[width + 1], moving[width + 2], width = 'encoding', 'json', width + 2 end
  if task[7] ~= '1' then moving[width + 1], moving[width + 2], width = 'more', 1, width + 2 end
  if more.priority then moving[width + 1], moving[width + 2], width = 'priority', more.priority, width + 2 end
  if more.type then moving[width + 1], moving[width + 2], width = 'type', more.type, width + 2 end
  if more.headers then
    local headers = merged(redis.call('HGET', key, 'headers'), more.headers)
    moving[width + 1], moving[width + 2], width = 'headers', headers, width + 2
  end
  redis.call(unpack(moving, 1, width))
  if task[8] or task[9] then redis.call('HDEL', key, 'error', 'expiries', 'suspect') end
  line.moved_in = line.moved_in + 1
end
