-- The queues that the rows of a batch go to: places are given in memory, and written once for a slice of rows.
local prefix, path = string.sub(tasks, 1, -6), string.match(queue, '^.*/') or ''
local lines = {}

local function line_to(to)
  local known = lines[to]
  if known then return known end
  local line = prefix .. to .. ':'
  known = {base = line, name = path .. to, waiting = line .. 'waiting', scheduled = line .. 'scheduled', ready = {},
    last = tonumber(redis.call('GET', line .. 'arrival')) or 0, moved_in = 0, enqueued = 0,
    room = room_in(line .. 'settings', line .. 'waiting', line .. 'scheduled')}
  lines[to] = known
  return known
end

-- Gives an item its place there. Returns it. A line without a schedule (of what is dead at once) knows no delay.
local function put_into(line, one, priority, delay_ms, now)
  line.room = line.room - 1
  if delay_ms > 0 and line.scheduled then
    local due = slot_at(line.scheduled, now + delay_ms)
    redis.call('ZADD', line.scheduled, due, one)
    return place_of(priority, due)
  end
  line.last = arrival_after(line.last, now)
  local place, at = place_of(priority, line.last), #line.ready
  line.ready[at + 1], line.ready[at + 2] = place, one
  return place
end

local function write_lines()
  for _, line in pairs(lines) do
    line_up(line.waiting, line.ready)
    if #line.ready > 0 then redis.call('SET', line.base .. 'arrival', exact(line.last)) end
    for _, counter in ipairs({'moved_in', 'enqueued'}) do
      if line[counter] > 0 then redis.call('HINCRBY', line.base .. 'counters', counter, line[counter]) end
    end
    if line.moved_in + line.enqueued > 0 then wake_one(line.base .. 'wake') end
  end
end

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

-- New items that the rows of a batch make; with the hops, headers, priority and key of the member they come from.
local shared, shared_words, is_shared_more = {}, {}, false
local last_parent, inherited = nil, {}

local function read_shared(read)
  for field, value in pairs(read) do
    if string.sub(field, 1, 2) == 's:' then
      local name, at = string.sub(field, 3), #shared_words
      shared[name], shared_words[at + 1], shared_words[at + 2] = value, name, value
      is_shared_more = is_shared_more or name ~= 'type' and name ~= 'priority' and name ~= 'key'
    end
  end
end

local function inherit(parent)
  if parent ~= last_parent then
    local task = redis.pcall('HMGET', tasks .. parent, 'hops', 'headers', 'priority', 'key')
    last_parent = parent
    inherited = {hops = number(task[1]) or 0, headers = task[2], priority = task[3], key = task[4]}
  end
  return inherited
end

-- From now to when it is due; `at_ms` is an instant.
local function delay_of(more, now) return more.at_ms and more.at_ms - now or more.delay_ms or 0 end

-- Most slices of rows meet no item that is there: one look for all of them tells.
local none_is_there, made = false, {}

local function look_for(ids)
  for n, one in ipairs(ids) do ids[n] = tasks .. one end
  none_is_there = count_existing(ids) == 0
end

local function is_there(key)
  return made[key] or not none_is_there and redis.call('EXISTS', key) == 1
end

-- Makes an item, unless there is one with its id. Returns whether it did, and its hops.
local function make(one, target, payload, more, now)
  local key, from = tasks .. one, more.parent and inherit(more.parent) or {}
  if is_there(key) then return false end
  local type, hops, headers = more.type or shared.type or '', from.hops and from.hops + 1, from.headers
  if more.headers then headers = merged(headers, more.headers) end
  local priority = more.priority or shared.priority or from.priority
  local words = {'HSET', key, 'id', one, 'queue', target.name, 'payload', payload, 'enqueue_time', exact(now),
    'retry_count', 0, 'place', put_into(target, one, priority or '', delay_of(more, now), now), unpack(shared_words)}
  local function add(field, value) words[#words + 1], words[#words + 2] = field, value end
  add('type', type)
  if type == '' then add('encoding', 'json') end
  if priority then add('priority', priority) end
  if more.key then add('key', more.key) end
  if headers then add('headers', headers) end
  if hops then add('hops', hops) end
  if from.key then add('key', from.key) end
  if type == '' or headers or is_shared_more then add('more', 1) end
  redis.call(unpack(words))
  made[key] = true
  target.enqueued = target.enqueued + 1
  return true
end
