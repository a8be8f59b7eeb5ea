local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- enqueue: nothing → waiting, or scheduled when due later. All tasks of the call or none.
-- KEYS  waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then for each task
--       id, priority ('' = default), due ('' now, '+N' in N ms, 'N' at Unix ms N), count of words, field, value, ...
-- reply list of 1 (new) or 0 (that id exists already: nothing was changed), in order
-- include clock place wake batch

local now = read_clock(now_ms)
local last = tonumber(redis.call('GET', arrival)) or 0
local started = exact(now)
local replies, ready, later = {}, {}, 0

local function due_of(given)
  if given == '' then return now end
  local due = tonumber(given)
  if string.sub(given, 1, 1) == '+' then due = now + due end
  return due
end

local function schedule(id, due)
  due = slot_at(scheduled, math.ceil(due))
  redis.call('ZADD', scheduled, exact(due), id)
  later = later + 1
end

local i = 3
while i <= #ARGV do
  local id, priority, due, words = ARGV[i], ARGV[i + 1], due_of(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local key = tasks .. id
  if redis.call('EXISTS', key) == 1 then
    replies[#replies + 1] = 0
  else
    redis.call('HSET', key, 'id', id, 'enqueue_time', started, 'retry_count', 0, unpack(ARGV, i + 4, i + 3 + words))
    if due > now then
      schedule(id, due)
    else
      last = arrival_after(last, now)
      ready[#ready + 1], ready[#ready + 2] = exact(place_of(priority, last)), id
    end
    replies[#replies + 1] = 1
  end
  i = i + 4 + words
end

if #ready > 0 then
  call_sliced('ZADD', waiting, ready)
  redis.call('SET', arrival, exact(last))
end
if #ready + later > 0 then
  redis.call('HINCRBY', counters, 'enqueued', #ready / 2 + later)
  wake_one(wake)
end
return replies
