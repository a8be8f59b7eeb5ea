local waiting, scheduled, pending, dead, settings, counters, wake = unpack(KEYS)
local now_ms, tasks, count, token, keepalive_ms = unpack(ARGV)
-- reserve: waiting → pending, the first `count` in line, each under a lease of its own.
-- KEYS  waiting, scheduled, pending, dead: zsets · settings, counters: hashes · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · count: at most so many · token: new for each call;
--       the lease token of the n-th task handed out is token.n · keepalive_ms: lease length for tasks that name none
-- reply {now, next event or '' (Unix ms), lease, ...}; lease = {id, deadline (Unix ms), keepalive_ms, type, payload,
--       attempts, retry_count, enqueue_time, max_attempts, headers, encoding}. No lease when empty or paused.
-- A member without a hash is dropped and counted as orphaned; a task past its time to start goes to dead.
-- include clock place wake batch limits bury upkeep

local now = read_clock(now_ms)
local defaults = upkeep(now)
local reply = {exact(now), ''}
count = tonumber(count)
if defaults.paused or count < 1 then
  reply[2] = next_event(defaults)
  return reply
end

local line = redis.call('ZRANGE', waiting, 0, count - 1, 'WITHSCORES')
local leases, taken = {}, 0
local own_keepalive = tonumber(keepalive_ms) or defaults.keepalive
local own_deadline = exact(now + own_keepalive)

local function hand_out(id, place, task)
  local keepalive = tonumber(task[2]) or own_keepalive
  local deadline = keepalive == own_keepalive and own_deadline or exact(now + keepalive)
  local attempts = (tonumber(task[6]) or 0) + 1
  taken = taken + 1
  redis.call('HSET', tasks .. id, 'attempts', attempts, 'token', token .. '.' .. taken, 'place', place)
  leases[#leases + 1], leases[#leases + 2] = deadline, id
  reply[#reply + 1] = {id, deadline, keepalive, task[4], task[5], attempts, task[7], task[8], task[9] or defaults.max_attempts, task[10], task[11]}
end

for i = 1, #line, 2 do
  local id = line[i]
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'keepalive_ms', 'expires_in_ms', 'type', 'payload', 'attempts',
    'retry_count', 'enqueue_time', 'max_attempts', 'headers', 'encoding')
  if task.err or not (task[1] or task[5]) then
    redis.call('HINCRBY', counters, 'orphaned', 1)
  elseif task[3] and (tonumber(task[8]) or now) + (tonumber(task[3]) or 0) <= now then
    redis.call('HINCRBY', counters, 'expired', 1)
    bury(dead, counters, key, id, now, 'expired before it started')
  else
    hand_out(id, line[i + 1], task)
  end
end

if #line > 0 then
  redis.call('ZREMRANGEBYRANK', waiting, 0, #line / 2 - 1)
  if #leases > 0 then call_sliced('ZADD', pending, leases) end
end
if taken < count then
  reply[2] = next_event(defaults)
elseif redis.call('ZCARD', waiting) > 0 then
  wake_one(wake)
end
return reply
