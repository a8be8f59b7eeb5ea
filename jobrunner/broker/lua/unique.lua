local waiting, scheduled, settings, counters, arrival, wake, lock = unpack(KEYS)
local now_ms, tasks, base, tag, queue, id, priority, due, lasts, ttl_ms, on_clash = unpack(ARGV, 1, 11)
-- unique: enqueues one task unless one like it is there: then that one stays, is replaced or gets another due time.
-- KEYS  waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset · lock: string, the end
--       of the lock (Unix ms), a blank and the id of the task that has it
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · base: prefix of the keys of its tag · tag ·
--       queue: full name · id · priority: '' = default · due: '' now, '+N' in N ms, 'N' at Unix ms N · lasts: 'started'
--       or 'finished' or 'expired', the end of the lock, which is `ttl_ms` behind the due time at the latest · ttl_ms ·
--       on_clash: 'replace', 'reschedule' or '' · then field, value, ...
-- reply {'new', 'replaced', 'rescheduled' or 'clash', id of the task that is there now}; or 'full'
-- The lock is held by what the task is, not by what anybody remembers to undo: a task that ended in any way holds none.
-- include number clock place join wake due enter size

local now = read_clock(now_ms)
local when = read_due(due, now)

local function place_of_holder(holder)
  local task = redis.pcall('HMGET', tasks .. holder, 'queue', 'retry_count')
  if task.err or not task[1] then return end
  local name = task[1]
  if string.sub(name, 1, #tag + 1) == tag .. '/' then name = string.sub(name, #tag + 2) end
  local line = base .. name .. ':'
  for _, state in ipairs({'waiting', 'scheduled', 'pending'}) do
    if redis.call('ZSCORE', line .. state, holder) then return line, state, task[2] end
  end
end

local function hold(id)
  local ends = math.max(when, now) + ttl_ms
  redis.call('SET', lock, exact(ends) .. ' ' .. id, 'PX', exact(math.ceil(ends - now)))
end

-- Puts the holder, which was not begun, where the new one would have gone.
local function put_instead(holder, line, state)
  local set, score, place = join(line .. 'waiting', line .. 'scheduled', line .. 'arrival', priority, when, now)
  redis.call('HSET', tasks .. holder, 'place', place)
  if on_clash == 'replace' then redis.call('HSET', tasks .. holder, unpack(ARGV, 12)) end
  redis.call('ZADD', set, score, holder)
  if line .. state ~= set then redis.call('ZREM', line .. state, holder) end
  hold(holder)
  wake_one(line .. 'wake')
  return {on_clash == 'replace' and 'replaced' or 'rescheduled', holder}
end

local ends, holder = string.match(redis.call('GET', lock) or '', '^(%S+) (.+)$')
if holder and holder ~= id and tonumber(ends) > now then
  local line, state, retries = place_of_holder(holder)
  local begun = state == 'pending' or (number(retries) or 0) > 0
  if state and not begun and on_clash ~= '' then return put_instead(holder, line, state) end
  if lasts == 'expired' or state and not (lasts == 'started' and begun) then return {'clash', holder} end
end
if redis.call('EXISTS', tasks .. id) == 1 then return {'new', id} end
if is_full(settings, waiting, scheduled, 1) then return 'full' end
enter(id, priority, when, now, {'queue', queue, unpack(ARGV, 12)})
hold(id)
return {'new', id}
