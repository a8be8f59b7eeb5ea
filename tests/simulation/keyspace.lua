-- The data of the simulated server: keys with a type, and times to live by a virtual clock. Only what the product uses
-- is here; an unknown command is an error that names it. What a command does and replies is compared with a real server
-- by test_server.py.
--
-- A key is {type = 'string' | 'hash' | 'list' | 'set' | 'zset' | 'stream', ...}; the fields are those of its file.
local keyspace = {db = {}, expires = {}, now = 0, random = 1, OK = {ok = 'OK'}}
local commands = {}
local db, expires = keyspace.db, keyspace.expires
local floor, format = math.floor, string.format
-- The texts of scores that were written in this run: most are written again and again.
local scores = {}

local WRONG_TYPE = {err = 'WRONGTYPE Operation against a key holding the wrong kind of value'}

function keyspace.reset(now, seed)
  for key in pairs(db) do db[key] = nil end
  for key in pairs(expires) do expires[key] = nil end
  for number in pairs(scores) do scores[number] = nil end
  keyspace.now, keyspace.random = now, seed % 2147483646 + 1
end

-- A whole number from 1 to `most` (Lehmer's generator): SPOP and HRANDFIELD choose by it, so a seed repeats a run.
function keyspace.choose(most)
  keyspace.random = keyspace.random * 16807 % 2147483647
  return keyspace.random % most + 1
end

-- A word of a command as text: a script may pass a number.
local function text(word)
  if type(word) == 'string' then return word end
  if word == floor(word) and word < 1e15 and word > -1e15 then return format('%d', word) end
  return format('%.17g', word)
end
keyspace.text = text

local function written_score(number)
  if number == math.huge then return 'inf' elseif number == -math.huge then return '-inf' end
  if number == floor(number) and number < 1e17 and number > -1e17 then return format('%.0f', number) end
  for digits = 15, 16 do
    local short = format('%.' .. digits .. 'g', number)
    if tonumber(short) == number then return short end
  end
  return format('%.17g', number)
end

-- A number as servers since Redis 7 write a score: the shortest text that reads as the same number.
function keyspace.score(number)
  local written = scores[number]
  if not written then
    written = written_score(number)
    scores[number] = written
  end
  return written
end

function keyspace.fail(message) error({err = message}, 0) end

function keyspace.integer(word)
  local read = tonumber(word)
  if not read or read ~= floor(read) then keyspace.fail('ERR value is not an integer or out of range') end
  return read
end

local function drop(key)
  db[key], expires[key] = nil, nil
end
keyspace.drop = drop

-- The value of a key, nil where there is none or its time is over. `kind`: of another type it is an error.
function keyspace.get(key, kind)
  local value = db[key]
  if not value then return nil end
  local ends = expires[key]
  if ends and ends <= keyspace.now then drop(key) return nil end
  if kind and value.type ~= kind then error(WRONG_TYPE, 0) end
  return value
end

function keyspace.put(key, value)
  db[key] = value
  return value
end

function commands.DEL(...)
  local keys, gone = {...}, 0
  for n = 1, #keys do
    if keyspace.get(keys[n]) then drop(keys[n]) gone = gone + 1 end
  end
  return gone
end
commands.UNLINK = commands.DEL

function commands.EXISTS(key, ...)
  local found = keyspace.get(key) and 1 or 0
  if not ... then return found end
  for _, key in ipairs({...}) do if keyspace.get(key) then found = found + 1 end end
  return found
end

function commands.TYPE(key)
  local value = keyspace.get(key)
  return {ok = value and value.type or 'none'}
end

function commands.PEXPIRE(key, ms)
  if not keyspace.get(key) then return 0 end
  ms = keyspace.integer(ms)
  if ms <= 0 then drop(key) else expires[key] = keyspace.now + ms end
  return 1
end

function commands.EXPIRE(key, seconds) return commands.PEXPIRE(key, keyspace.integer(seconds) * 1000) end

function commands.PTTL(key)
  if not keyspace.get(key) then return -2 end
  local ends = expires[key]
  return ends and floor(ends - keyspace.now + 0.5) or -1
end

function commands.PERSIST(key)
  if not keyspace.get(key) or not expires[key] then return 0 end
  expires[key] = nil
  return 1
end

function commands.RENAME(key, name)
  local value, ends = keyspace.get(key), expires[key]
  if not value then keyspace.fail('ERR no such key') end
  drop(key)
  db[name], expires[name] = value, ends
  return keyspace.OK
end

function commands.TIME()
  local seconds = floor(keyspace.now / 1000)
  return {format('%d', seconds), format('%d', floor((keyspace.now - seconds * 1000) * 1000))}
end

-- All keys at once. The product's patterns are a prefix, or a text between two stars; the type is a filter.
function commands.SCAN(_, ...)
  local words, names = {...}, {}
  local pattern, kind = '*', nil
  for n = 1, #words, 2 do
    if words[n] == 'MATCH' then pattern = words[n + 1] elseif words[n] == 'TYPE' then kind = words[n + 1] end
  end
  local lua = '^' .. string.gsub(pattern, '.', function(letter)
    return letter == '*' and '.*' or (string.find(letter, '%w') and letter or '%' .. letter)
  end) .. '$'
  for key in pairs(db) do
    local value = keyspace.get(key)
    if value and (not kind or value.type == kind) and string.find(key, lua) then names[#names + 1] = key end
  end
  table.sort(names)
  return {'0', names}
end

function commands.PING() return {ok = 'PONG'} end

function commands.INFO() return 'maxmemory_policy:noeviction\r\n' end
function commands.PUBLISH() return 0 end

-- Strings.
local function string_of(key)
  local value = keyspace.get(key, 'string')
  return value and value.text
end

function commands.GET(key) return string_of(key) or false end
function commands.STRLEN(key) return #(string_of(key) or '') end

function commands.SET(key, value, ...)
  local is_new, is_old, reads, ms = false, false, false, nil
  if ... then
    local words, at = {...}, 1
    while words[at] do
      local word = words[at]
      if word == 'NX' then is_new = true
      elseif word == 'XX' then is_old = true
      elseif word == 'GET' then reads = true
      elseif word == 'PX' then ms, at = keyspace.integer(words[at + 1]), at + 1
      elseif word == 'EX' then ms, at = keyspace.integer(words[at + 1]) * 1000, at + 1
      else keyspace.fail('ERR the simulated server does not know SET ... ' .. text(word)) end
      at = at + 1
    end
  end
  local known = keyspace.get(key)
  local before = reads and (string_of(key) or false)
  if is_new and known or is_old and not known then return before end
  keyspace.put(key, {type = 'string', text = text(value)})
  expires[key] = ms and keyspace.now + ms or nil
  if reads then return before end
  return keyspace.OK
end

function commands.SETNX(key, value) return commands.SET(key, value, 'NX') and 1 or 0 end

function commands.INCR(key)
  local value = keyspace.get(key, 'string') or keyspace.put(key, {type = 'string', text = '0'})
  local number = keyspace.integer(value.text) + 1
  value.text = text(number)
  return number
end

return keyspace, commands
