-- The simulated server: runs scripts and commands on the keyspace, and writes replies in the server's protocol.
local keyspace, commands, host = ...
local text = keyspace.text
-- The scripts that a client may call by their digests, and all that were ever compiled: a run may forget scripts often.
local scripts, compiled, was_flushed = {}, {}, false
-- Digests by their texts: sources and error groups, of which there are few, come again and again.
local digests = setmetatable({}, {__index = function(known, words)
  local digest = host.sha1hex(words)
  known[words] = digest
  return digest
end})
-- LuaJIT goes through a table in an order that also depends on what it did before: so a seed would be another run
-- behind other runs. In the scripts the order is that of the keys.
local function is_before(one, other)
  if type(one) ~= type(other) then return type(one) < type(other) end
  return one < other
end

local function sorted_pairs(of)
  local first = next(of)
  if first == nil or next(of, first) == nil then return next, of, nil end
  local keys, at = {}, 0
  for key in next, of do keys[#keys + 1] = key end
  table.sort(keys, is_before)
  return function()
    repeat at = at + 1 until keys[at] == nil or of[keys[at]] ~= nil
    return keys[at], of[keys[at]]
  end
end

local sandbox = {string = string, table = table, math = math, ipairs = ipairs, pairs = sorted_pairs,
  tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, select = select, error = error, pcall = pcall, next = next,
  setmetatable = setmetatable, rawget = rawget, redis = {}, cjson = {}}

setmetatable(sandbox, {
  __index = function(_, name) error('a script read the global variable ' .. tostring(name) .. ', which is none', 2) end,
  __newindex = function(_, name) error('a script set the global variable ' .. tostring(name), 2) end,
})
rawset(sandbox, 'KEYS', false)
rawset(sandbox, 'ARGV', false)

setmetatable(commands, {__index = function(_, name)
  keyspace.fail("ERR the simulated server has no command '" .. tostring(name) .. "': add it to tests/simulation")
end})

local function run(name, ...) return commands[name](...) end

function sandbox.redis.pcall(...)
  local is_done, reply = pcall(run, ...)
  if is_done or type(reply) == 'table' and reply.err then return reply end
  error(reply, 0)
end

sandbox.redis.call = run
function sandbox.redis.error_reply(message) return {err = message} end
function sandbox.redis.status_reply(message) return {ok = message} end
function sandbox.redis.sha1hex(words) return digests[words] end
function sandbox.redis.log(_, message) host.log(message) end
function sandbox.cjson.encode(value) return host.encode_json(value) end
function sandbox.cjson.decode(words) return host.decode_json(words) end

-- How a text of each size begins in the server's protocol: '$5\r\n'.
local heads = setmetatable({}, {__index = function(known, size)
  local head = '$' .. size .. '\r\n'
  known[size] = head
  return head
end})

-- Adds a reply to parts that end at `at`, as the server's protocol (RESP2) writes it. Returns where they end then.
local function write(reply, parts, at)
  local kind = type(reply)
  if kind == 'string' then
    parts[at + 1], parts[at + 2], parts[at + 3] = heads[#reply], reply, '\r\n'
    return at + 3
  elseif kind == 'number' then
    parts[at + 1] = string.format(':%.0f\r\n', reply < 0 and math.ceil(reply) or math.floor(reply))
  elseif kind ~= 'table' then
    parts[at + 1] = reply == true and ':1\r\n' or '$-1\r\n'
  elseif reply.err then
    parts[at + 1] = '-' .. string.gsub(reply.err, '[\r\n]', ' ') .. '\r\n'
  elseif reply.ok then
    parts[at + 1] = '+' .. reply.ok .. '\r\n'
  else
    local size, from = 0, at + 1
    at = from
    while reply[size + 1] ~= nil do
      size = size + 1
      at = write(reply[size], parts, at)
    end
    parts[from] = '*' .. size .. '\r\n'
    return at
  end
  return at + 1
end

local function written(reply)
  if type(reply) == 'string' then return heads[#reply] .. reply .. '\r\n' end
  local parts = {}
  return table.concat(parts, '', 1, write(reply, parts, 0))
end

-- A script's functions are made anew at each call, so its chunk is kept and nothing else of it is.
function commands.EVALSHA(sha, count, ...)
  local script = scripts[sha]
  if not script then keyspace.fail('NOSCRIPT No matching script.') end
  sandbox.KEYS, sandbox.ARGV = {unpack({...}, 1, count)}, {select(count + 1, ...)}
  return script()
end

local server = {}

-- Makes a script known under its digest. Returns the digest, as SCRIPT LOAD does. `patched`: what runs in its place.
function server.learn(source, patched)
  local sha = digests[source]
  if not compiled[sha] then
    local script, why = loadstring(patched or source, '@user_script')
    if not script then error(why) end
    compiled[sha] = setfenv(script, sandbox)
  end
  scripts[sha] = compiled[sha]
  return sha
end

function commands.EVAL(source, ...) return commands.EVALSHA(server.learn(source), ...) end

function commands.SCRIPT(verb, source)
  if verb == 'FLUSH' then
    scripts, was_flushed = {}, true
    return {ok = 'OK'}
  end
  if verb ~= 'LOAD' then keyspace.fail('ERR the simulated server does not know SCRIPT ' .. tostring(verb)) end
  return server.learn(source)
end

-- Carries out one command at an instant of the server's clock, Unix ms.
function server.execute(now, ...)
  keyspace.now = now
  local is_done, reply = pcall(run, ...)
  if not is_done then
    reply = type(reply) == 'table' and reply or {err = 'ERR Error running script: ' .. tostring(reply)}
  end
  return written(reply)
end

-- Whether any of these keys exists.
function server.holds(now, ...)
  keyspace.now = now
  local keys = {...}
  for n = 1, #keys do if keyspace.get(keys[n]) then return true end end
  return false
end

-- What a key holds, as texts that compare. `is_brief`: of sorted sets and of counters only.
local function content(key, value, is_brief)
  if value.type == 'zset' then return commands.ZRANGE(key, 0, -1, 'WITHSCORES') end
  if is_brief and string.sub(key, -9) ~= ':counters' then return {} end
  if value.type == 'string' then return {value.text}
  elseif value.type == 'hash' then return commands.HGETALL(key)
  elseif value.type == 'list' then return value.items
  elseif value.type == 'set' then return commands.SMEMBERS(key) end
  return {}
end

-- The whole keyspace: a list of keys, each with {type, ms to live, {name, value, ...}} behind it.
function server.dump(now, is_brief)
  keyspace.now = now
  local found, size = {}, 0
  for key in pairs(keyspace.db) do
    local value = keyspace.get(key)
    if value then
      found[size + 1], found[size + 2] = key, {value.type, commands.PTTL(key), content(key, value, is_brief)}
      size = size + 2
    end
  end
  return written(found)
end

-- Deletes all keys. Every script that was ever compiled is known again, so no run depends on the one before.
function server.reset(now, seed)
  if was_flushed then
    for sha, script in pairs(compiled) do scripts[sha] = script end
    was_flushed = false
  end
  keyspace.reset(now, seed)
end

return server
