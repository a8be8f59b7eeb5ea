local waiting, scheduled, pending, dead, settings, counters, wake = unpack(KEYS)
local now_ms, tasks, queue, finished = unpack(ARGV, 1, 4)
-- fail: pending → scheduled after a delay, or → dead when told so or when the attempts are spent.
-- KEYS  waiting, scheduled, pending, dead: zsets · settings, counters: hashes · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the channels
--       that tell waiters · then for each report: id, token, delay_ms, 'retry' or 'dead', error (text)
-- reply list beside the reports: 'scheduled', 'dead', or 'gone', 'not_reserved', 'lost' (nothing changed)
-- Frees first, so it works on a server that is full.
-- include clock place wake batch limits bury lease

local now = read_clock(now_ms)
local verdicts, live, reports, awaited = judge(5, 5, now, queue)
if #live > 0 then call_sliced('ZREM', pending, live) end
local queue_limit = #live > 0 and tonumber(redis.call('HGET', settings, 'max_attempts')) or DEFAULT_MAX_ATTEMPTS

local function fail_one(id, at, waited)
  local key, error_text = tasks .. id, ARGV[at + 4]
  local task = redis.call('HMGET', key, 'attempts', 'max_attempts', 'retry_count')
  redis.call('HSET', key, 'retry_count', (tonumber(task[3]) or 0) + 1, 'error', error_text)
  redis.call('HINCRBY', counters, 'failed', 1)
  if ARGV[at + 3] == 'dead' or is_spent(tonumber(task[1]) or 1, tonumber(task[2]) or queue_limit) then
    bury(dead, counters, key, id, now, error_text)
    if waited then redis.call('PUBLISH', finished .. id, 'dead') end
    return 'dead'
  end
  redis.call('ZADD', scheduled, exact(slot_at(scheduled, math.ceil(now + tonumber(ARGV[at + 2])))), id)
  return 'scheduled'
end

local retried = 0
for n, at in ipairs(reports) do
  local verdict = fail_one(live[n], at, awaited[n])
  verdicts[(at - 5) / 5 + 1] = verdict
  if verdict == 'scheduled' then retried = retried + 1 end
end
if retried > 0 then wake_one(wake) end
return verdicts
