local waiting, scheduled, pending, dead, settings, counters, wake = unpack(KEYS)
local now_ms, tasks, count = unpack(ARGV)
-- pop: waiting → out of the queue, the first `count` in line: at most once, nothing comes back.
-- KEYS  waiting, scheduled, pending, dead: zsets · settings, counters: hashes · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · count: at most so many
-- reply list of {id, type, payload, headers, encoding}; empty when nothing waits or the queue is paused
-- include clock place wake limits bury upkeep

local now = read_clock(now_ms)
local defaults = upkeep(now)
local reply = {}
if defaults.paused then return reply end
local ids = redis.call('ZRANGE', waiting, 0, tonumber(count) - 1)
local orphaned, expired, doomed = 0, 0, {}
for _, id in ipairs(ids) do
  local task = redis.pcall('HMGET', tasks .. id, 'id', 'type', 'payload', 'headers', 'expires_in_ms', 'enqueue_time', 'encoding')
  if task.err or not (task[1] or task[3]) then
    orphaned = orphaned + 1
  elseif task[5] and (tonumber(task[6]) or now) + (tonumber(task[5]) or 0) <= now then
    expired = expired + 1
    bury(dead, counters, tasks .. id, id, now, 'expired before it started')
  else
    reply[#reply + 1] = {id, task[2], task[3], task[4], task[7]}
    doomed[#doomed + 1] = tasks .. id
  end
end
if #ids > 0 then redis.call('ZREMRANGEBYRANK', waiting, 0, #ids - 1) end
if #doomed > 0 then redis.call('UNLINK', unpack(doomed)) end
if orphaned > 0 then redis.call('HINCRBY', counters, 'orphaned', orphaned) end
if expired > 0 then redis.call('HINCRBY', counters, 'expired', expired) end
if #reply > 0 then redis.call('HINCRBY', counters, 'succeeded', #reply) end
if redis.call('ZCARD', waiting) > 0 then wake_one(wake) end
return reply
