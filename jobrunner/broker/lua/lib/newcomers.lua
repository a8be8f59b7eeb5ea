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
