-- Hashes, lists, sets and streams of the simulated server.
local keyspace, commands = ...
local text, integer = keyspace.text, keyspace.integer
local NONE = {}

-- Takes `gone` members off the size of a hash or a set, which goes with the last one.
local function shrunk(key, value, gone)
  if value then
    value.size = value.size - gone
    if value.size == 0 then keyspace.drop(key) end
  end
  return gone
end

-- A hash is {fields = {name = text}, size = number of them, names = all of them sorted, once they were asked for}.
local function hash(key)
  local value = keyspace.get(key, 'hash')
  return value and value.fields, value
end

local function made_hash(key)
  local value = keyspace.get(key, 'hash') or keyspace.put(key, {type = 'hash', fields = {}, size = 0})
  return value.fields, value
end

local function set_field(value, field, word)
  if value.fields[field] == nil then value.size, value.names = value.size + 1, nil end
  value.fields[field] = word
end

function commands.HSET(key, ...)
  local words, added = {...}, 0
  local count = #words
  if count == 0 or count % 2 == 1 then keyspace.fail("ERR wrong number of arguments for 'hset' command") end
  local fields, value = made_hash(key)
  for n = 1, count, 2 do
    local field, word = words[n], words[n + 1]
    if type(field) ~= 'string' then field = text(field) end
    if type(word) ~= 'string' then word = text(word) end
    if fields[field] == nil then added = added + 1 end
    fields[field] = word
  end
  if added > 0 then value.size, value.names = value.size + added, nil end
  return added
end

function commands.HSETNX(key, field, word)
  local fields, value = made_hash(key)
  if fields[field] ~= nil then return 0 end
  set_field(value, field, text(word))
  return 1
end

function commands.HGET(key, field)
  local fields = hash(key)
  return fields and fields[text(field)] or false
end

function commands.HMGET(key, ...)
  local found, fields = {...}, hash(key) or NONE
  for n = 1, #found do
    local name = found[n]
    if type(name) ~= 'string' then name = text(name) end
    found[n] = fields[name] or false
  end
  return found
end

local function sorted(of)
  local names = {}
  for name in pairs(of) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- The names of a hash's fields, sorted: not to be changed.
local function names_of(key)
  local fields, value = hash(key)
  if not fields then return NONE, NONE end
  value.names = value.names or sorted(fields)
  return value.names, fields
end

function commands.HGETALL(key)
  local names, fields = names_of(key)
  local words = {}
  for n = 1, #names do
    local name = names[n]
    words[2 * n - 1], words[2 * n] = name, fields[name]
  end
  return words
end

function commands.HKEYS(key) return {unpack((names_of(key)))} end

function commands.HVALS(key)
  local names, fields = names_of(key)
  local words = {}
  for n = 1, #names do words[n] = fields[names[n]] end
  return words
end

function commands.HDEL(key, ...)
  local names, gone = {...}, 0
  local fields, value = hash(key)
  if not fields then return 0 end
  for n = 1, #names do
    local name = text(names[n])
    if fields[name] ~= nil then fields[name], gone = nil, gone + 1 end
  end
  if gone > 0 then value.names = nil end
  return shrunk(key, value, gone)
end

function commands.HEXISTS(key, field)
  local fields = hash(key)
  return fields and fields[text(field)] ~= nil and 1 or 0
end

function commands.HLEN(key)
  local _, value = hash(key)
  return value and value.size or 0
end

function commands.HSTRLEN(key, field)
  local fields = hash(key)
  return #(fields and fields[field] or '')
end

function commands.HINCRBY(key, field, by)
  local fields, value = made_hash(key)
  local number = (fields[field] == nil and 0 or tonumber(fields[field]))
  if not number or number ~= math.floor(number) then keyspace.fail('ERR hash value is not an integer') end
  number = number + integer(by)
  set_field(value, field, text(number))
  return number
end

function commands.HRANDFIELD(key, count)
  local names, found = commands.HKEYS(key), {}
  if not count then return names[1] and names[keyspace.choose(#names)] or false end
  count = integer(count)
  for n = 1, math.abs(count) do
    if #names == 0 then break end
    local chosen = keyspace.choose(#names)
    found[n] = count < 0 and names[chosen] or table.remove(names, chosen)
  end
  return found
end

-- A list is {items = {...}}.
local function list(key)
  local value = keyspace.get(key, 'list')
  return value and value.items or {}
end

local function made_list(key)
  return (keyspace.get(key, 'list') or keyspace.put(key, {type = 'list', items = {}})).items
end

function commands.RPUSH(key, ...)
  local items = made_list(key)
  local words, size = {...}, #items
  for n = 1, #words do items[size + n] = text(words[n]) end
  return #items
end

function commands.LPUSH(key, ...)
  local items = made_list(key)
  for _, word in ipairs({...}) do table.insert(items, 1, text(word)) end
  return #items
end

function commands.LLEN(key) return #list(key) end

-- The first and last position of a range, from 1 on; negative ones count from the end.
local function range(first, last, size)
  first, last = integer(first), integer(last)
  if first < 0 then first = math.max(first + size, 0) end
  if last < 0 then last = last + size end
  return first + 1, math.min(last + 1, size)
end
keyspace.range = range

function commands.LRANGE(key, first, last)
  local items, found = list(key), {}
  first, last = range(first, last, #items)
  for n = first, last do found[n - first + 1] = items[n] end
  return found
end

function commands.LTRIM(key, first, last)
  local value = keyspace.get(key, 'list')
  if value then
    value.items = commands.LRANGE(key, first, last)
    if #value.items == 0 then keyspace.drop(key) end
  end
  return keyspace.OK
end

function commands.LINDEX(key, at)
  local items = list(key)
  at = integer(at)
  return items[at < 0 and #items + at + 1 or at + 1] or false
end

function commands.LPOS(key, word)
  for n, item in ipairs(list(key)) do if item == word then return n - 1 end end
  return false
end

-- A set is {members = {name = true}, size = number of them}.
local function members(key)
  local value = keyspace.get(key, 'set')
  return value and value.members or {}, value
end

function commands.SADD(key, ...)
  local value, added = keyspace.get(key, 'set') or keyspace.put(key, {type = 'set', members = {}, size = 0}), 0
  local names = {...}
  for n = 1, #names do
    local name = text(names[n])
    if not value.members[name] then value.members[name], added = true, added + 1 end
  end
  value.size = value.size + added
  return added
end

function commands.SREM(key, ...)
  local found, value = members(key)
  local gone = 0
  for _, name in ipairs({...}) do if found[name] then found[name], gone = nil, gone + 1 end end
  return shrunk(key, value, gone)
end

function commands.SISMEMBER(key, name) return members(key)[name] and 1 or 0 end
function commands.SMEMBERS(key) return sorted((members(key))) end

function commands.SMISMEMBER(key, ...)
  local found, flags = members(key), {}
  for n, name in ipairs({...}) do flags[n] = found[name] and 1 or 0 end
  return flags
end

function commands.SPOP(key, count)
  local names, taken = sorted((members(key))), {}
  for n = 1, math.min(integer(count), #names) do taken[n] = table.remove(names, keyspace.choose(#names)) end
  if #taken > 0 then commands.SREM(key, unpack(taken)) end
  return taken
end

function commands.HSCAN(key) return {'0', commands.HGETALL(key)} end
function commands.SSCAN(key) return {'0', sorted((members(key)))} end

-- A stream is {size = number of entries}: the simulation writes events and reads none.
function commands.XADD(key)
  local value = keyspace.get(key, 'stream') or keyspace.put(key, {type = 'stream', size = 0})
  value.size = value.size + 1
  return string.format('%d-%d', math.floor(keyspace.now), value.size)
end
