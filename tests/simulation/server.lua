-- The simulated server: runs scripts and commands on the keyspace, and writes replies in the server's protocol.
local keyspace, commands, host = ...
local text = keyspace.text
-- The scripts that a client may call by their digests, and all that were ever compiled: a run may forget scripts often.
local scripts, compiled, was_flushed = {}, {}, false
local sandbox = {string = string, table = table, math = math, ipairs = ipairs, pairs = pairs, tonumber = tonumber,
  tostring = tostring, type = type, unpack = unpack, select = select, error = error, pcall = pcall, next = next,
  setmetatable = setmetatable, rawget = rawget, redis = {}, cjson = {}}

setmetatable(sandbox, {
  __index = function(_, name) error('a script read the global variable ' .. tostring(name) .. ', which is none', 2) end,
  __newindex = function(_, name) error('a script set the global variable ' .. tostring(name), 2) end,
})
rawset(sandbox, 'KEYS', false)
rawset(sandbox, 'ARGV', false)

local function run(name, ...)
  local command = commands[name]
  if not command then
    keyspace.fail("ERR the simulated server has no command '" .. tostring(name) .. "': add it to tests/simulation")
  end
  return command(...)
end

function sandbox.redis.pcall(...)
  local is_done, reply = pcall(run, ...)
  if is_done or type(reply) == 'table' and reply.err then return reply end
  error(reply, 0)
end

sandbox.redis.call = run
function sandbox.redis.error_reply(message) return {err = message} end
function sandbox.redis.status_reply(message) return {ok = message} end
function sandbox.redis.sha1hex(words) return host.sha1hex(words) end
function sandbox.redis.log(_, message) host.log(message) end
function sandbox.cjson.encode(value) return host.encode_json(value) end
function sandbox.cjson.decode(words) return host.decode_json(words) end

-- A reply as the server's protocol (RESP2) writes it.
local function write(reply, parts)
  local kind = type(reply)
  if kind == 'string' then
    parts[#parts + 1] = '$' .. #reply .. '\r\n' .. reply .. '\r\n'
  elseif kind == 'number' then
    parts[#parts + 1] = string.format(':%.0f\r\n', reply < 0 and math.ceil(reply) or math.floor(reply))
  elseif kind == 'table' then
    if reply.err then
      parts[#parts + 1] = '-' .. string.gsub(reply.err, '[\r\n]', ' ') .. '\r\n'
    elseif reply.ok then
      parts[#parts + 1] = '+' .. reply.ok .. '\r\n'
    else
      local size, at = 0, #parts + 1
      parts[at] = ''
      while reply[size + 1] ~= nil do
        size = size + 1
        write(reply[size], parts)
      end
      parts[at] = '*' .. size .. '\r\n'
    end
  elseif reply == true then
    parts[#parts + 1] = ':1\r\n'
  else
    parts[#parts + 1] = '$-1\r\n'
  end
end

local function written(reply)
  if type(reply) == 'string' then return '$' .. #reply .. '\r\n' .. reply .. '\r\n' end
  local parts = {}
  write(reply, parts)
  return table.concat(parts)
end

-- A script's functions are made anew at each call, so its chunk is kept and nothing else of it is.
function commands.EVALSHA(sha, count, ...)
  local script = scripts[sha]
  if not script then keyspace.fail('NOSCRIPT No matching script.') end
  local words, keys = {...}, {}
  count = tonumber(count)
  for n = 1, count do keys[n] = words[n] end
  local arguments = count == 0 and words or {unpack(words, count + 1)}
  rawset(sandbox, 'KEYS', keys)
  rawset(sandbox, 'ARGV', arguments)
  return script()
end

local server = {}

-- Makes a script known under its digest. Returns the digest, as SCRIPT LOAD does. `patched`: what runs in its place.
function server.learn(source, patched)
  local known = compiled[source]
  if not known then
    local script, why = loadstring(patched or source, '@user_script')
    if not script then error(why) end
    known = {sha = host.sha1hex(source), script = setfenv(script, sandbox)}
    compiled[source] = known
  end
  scripts[known.sha] = known.script
  return known.sha
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
  return commands.EXISTS(...) > 0
end

-- What a key holds, as text that compares: {type, ms to live, name, value, ...}, or false for none. `is_brief`: of
-- hashes only counters.
local function dump(key, is_brief)
  local value = keyspace.get(key)
  if not value then return false end
  local words = {value.type, text(commands.PTTL(key))}
  local function add(found) for n = 1, #found do words[#words + 1] = found[n] end end
  if value.type == 'string' then words[3] = value.text
  elseif value.type == 'hash' then
    if not is_brief or string.sub(key, -9) == ':counters' then add(commands.HGETALL(key)) end
  elseif value.type == 'list' then add(value.items)
  elseif value.type == 'set' then add(commands.SMEMBERS(key))
  elseif value.type == 'zset' then add(commands.ZRANGE(key, 0, -1, 'WITHSCORES')) end
  return words
end

-- The whole keyspace: a list of keys, each with {type, ms to live, name, value, ...} behind it.
function server.dump(now, is_brief)
  keyspace.now = now
  local found = {}
  for key in pairs(keyspace.db) do
    local words = dump(key, is_brief)
    if words then
      found[#found + 1] = key
      found[#found + 1] = words
    end
  end
  return written(found)
end

-- Deletes all keys. Every script that was ever compiled is known again, so no run depends on the one before.
function server.reset(now, seed)
  if was_flushed then
    for _, known in pairs(compiled) do scripts[known.sha] = known.script end
    was_flushed = false
  end
  keyspace.reset(now, seed)
end

return server
