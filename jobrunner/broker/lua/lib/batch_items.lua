-- Adds the rows of a batch to their target queues. Positions are assigned in memory and written once for each slice of
-- rows.
local prefix, path = string.sub(tasks, 1, -6), string.match(queue, '^.*/') or ''
local target_queues = {}

local function target_queue(to)
  local known = target_queues[to]
  if known then return known end
  local target = prefix .. to .. ':'
  known = {base = target, name = path .. to, waiting = target .. 'waiting', scheduled = target .. 'scheduled',
    ready = {}, last = tonumber(redis.call('GET', target .. 'arrival')) or 0, moved_in = 0, enqueued = 0,
    capacity = capacity_left(target .. 'settings', target .. 'waiting', target .. 'scheduled')}
  target_queues[to] = known
  return known
end

-- Assigns an item its position in the target queue and returns it. A target without `scheduled` (of an item that dies
-- at once) ignores the delay.
local function place_in(target, one, priority, delay_ms, now)
  target.capacity = target.capacity - 1
  if delay_ms > 0 and target.scheduled then
    local due = slot_at(target.scheduled, now + delay_ms)
    redis.call('ZADD', target.scheduled, due, one)
    return place_of(priority, due)
  end
  target.last = arrival_after(target.last, now)
  local place, at = place_of(priority, target.last), #target.ready
  target.ready[at + 1], target.ready[at + 2] = place, one
  return place
end

local function write_target_queues()
  for _, target in pairs(target_queues) do
    add_waiting(target.waiting, target.ready)
    if #target.ready > 0 then redis.call('SET', target.base .. 'arrival', exact(target.last)) end
    for _, counter in ipairs({'moved_in', 'enqueued'}) do
      if target[counter] > 0 then redis.call('HINCRBY', target.base .. 'counters', counter, target[counter]) end
    end
    if target.moved_in + target.enqueued > 0 then notify_worker(target.base .. 'wake') end
  end
end

-- A member stays the same item in its next queue: attempts and failures restart at zero, total_attempts and hops
-- continue. Fields with the right value are not written: each write into a small hash moves the fields stored after it.
local MOVED_FIELDS = {'id', 'retry_count', 'total_attempts', 'hops', 'priority', 'encoding', 'more', 'error',
  'expiries', 'cancel_requested', 'expires_in_ms', 'unknown_since'}
local moving = {'HSET', '', 'queue', '', 'place', 0, 'payload', '', 'hops', 0, 'total_attempts', 0}
local moving_fixed = #moving

local function read_moving(one)
  return redis.pcall('HMGET', tasks .. one, unpack(MOVED_FIELDS))
end

local function move_member(one, task, target, payload, options, hops, attempts, now)
  local key, width = tasks .. one, moving_fixed
  moving[2], moving[4], moving[8], moving[10] = key, target.name, payload, hops
  moving[6] = place_in(target, one, options.priority or task[5] or '', options.delay_ms or 0, now)
  moving[12] = (number(task[3]) or 0) + attempts
  if task[2] ~= '0' then moving[width + 1], moving[width + 2], width = 'retry_count', 0, width + 2 end
  if task[6] ~= 'json' then moving[width + 1], moving[width + 2], width = 'encoding', 'json', width + 2 end
  if task[7] ~= '1' then moving[width + 1], moving[width + 2], width = 'more', 1, width + 2 end
  if options.priority then moving[width + 1], moving[width + 2], width = 'priority', options.priority, width + 2 end
  if options.type then moving[width + 1], moving[width + 2], width = 'type', options.type, width + 2 end
  if options.headers then
    local headers = merge_headers(redis.call('HGET', key, 'headers'), options.headers)
    moving[width + 1], moving[width + 2], width = 'headers', headers, width + 2
  end
  if task[8] or task[9] or task[11] or task[12] then
    redis.call('HDEL', key, 'error', 'expiries', 'suspect', 'expires_in_ms', 'unknown_since')
  end
  if target.name == queue then  -- it has begun here
    moving[width + 1], moving[width + 2], width = 'expires_in_ms', 'never', width + 2
  end
  redis.call(unpack(moving, 1, width))
  target.moved_in = target.moved_in + 1
end

-- New items from rows. They inherit hops, headers, priority and partition of their parent member.
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

-- The delay until a new item is due, in ms; `at_ms` is an instant.
local function delay_of(options, now) return options.at_ms and options.at_ms - now or options.delay_ms or 0 end

-- In most slices no new item exists yet, which a single EXISTS for all of them shows.
local no_id_exists, made = false, {}

local function check_ids(ids)
  for n, one in ipairs(ids) do ids[n] = tasks .. one end
  no_id_exists = count_existing(ids) == 0
end

local function item_exists(key)
  return made[key] or not no_id_exists and redis.call('EXISTS', key) == 1
end

-- Creates an item unless its id exists. Returns whether it was created.
local function create_item(one, target, payload, options, now)
  local key, from = tasks .. one, options.parent and inherit(options.parent) or {}
  if item_exists(key) then return false end
  local type, hops, headers = options.type or shared.type or '', from.hops and from.hops + 1, from.headers
  if options.headers then headers = merge_headers(headers, options.headers) end
  local priority = options.priority or shared.priority or from.priority
  local words = {'HSET', key, 'id', one, 'queue', target.name, 'payload', payload, 'enqueue_time', exact(now),
    'retry_count', 0, 'place', place_in(target, one, priority or '', delay_of(options, now), now), unpack(shared_words)}
  local function add(field, value) words[#words + 1], words[#words + 2] = field, value end
  add('type', type)
  if type == '' then add('encoding', 'json') end
  if priority then add('priority', priority) end
  if options.key then add('key', options.key) end
  if headers then add('headers', headers) end
  if hops then add('hops', hops) end
  if from.key then add('key', from.key) end
  if type == '' or headers or is_shared_more then add('more', 1) end
  redis.call(unpack(words))
  made[key] = true
  target.enqueued = target.enqueued + 1
  return true
end
