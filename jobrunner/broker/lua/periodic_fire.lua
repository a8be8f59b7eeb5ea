local waiting, scheduled, pending, counters, arrival, wake, periodic = unpack(KEYS)
local now_ms, tasks, expected, tick, epoch, id, priority, due, overlap, schedule, together = unpack(ARGV, 1, 11)
-- periodic_fire: one tick of a periodic job becomes one waiting task, however many leaders try.
-- KEYS  waiting, scheduled, pending: zsets · counters: hash · arrival: string · wake: zset ·
--       periodic: hash {last, schedule: digest of the one that `last` is a tick of, task, together: the last tick that
--       its task does not keep out, epoch, fired, skipped, disabled, recent: the last 20 ticks, newest first, each
--       'tick,outcome,id' and ';' between}
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · expected: `last` as the caller read it ('' = never
--       ran) · tick: Unix ms of this tick · epoch: fencing number of the caller's leadership (0 = by hand) ·
--       id: of the new task, made from job and tick · priority · due: Unix ms (tick plus jitter) ·
--       overlap: 'allow', or 'skip' while the task of an earlier tick is not finished · schedule: digest ·
--       together: Unix ms, the last tick that is caught up together with this one · then field, value, ...
-- reply 'fired', 'skipped' (overlap), 'disabled' (only noted as the last tick), 'missed' (another caller was first) or
--       'fenced' (an older leader)
-- include numbers commands queue_position waiting_set

local now = read_clock(now_ms)
local state = redis.call('HMGET', periodic, 'last', 'task', 'epoch', 'disabled', 'together')
if tonumber(epoch) > 0 and (tonumber(state[3]) or 0) > tonumber(epoch) then return 'fenced' end
if (state[1] or '') ~= expected then return 'missed' end

local function is_live(earlier)
  return redis.call('ZSCORE', waiting, earlier) or redis.call('ZSCORE', scheduled, earlier)
    or redis.call('ZSCORE', pending, earlier)
end

-- Damaged keys raise an error here, before the tick is noted, so it fires once they are repaired.
for _, set in ipairs({waiting, scheduled, pending, wake}) do redis.call('ZCARD', set) end
redis.call('STRLEN', arrival)
local counted = {redis.call('HGET', counters, 'enqueued'), redis.call('HGET', periodic, 'fired'),
  redis.call('HGET', periodic, 'skipped')}
for n = 1, 3 do
  if counted[n] and not string.find(counted[n], '^%d+$') then
    return redis.error_reply('ERR a count of this periodic job or of its queue is no number')
  end
end

local function note_tick(outcome, task)
  local kept = {tick .. ',' .. outcome .. ',' .. task}
  for one in string.gmatch(redis.call('HGET', periodic, 'recent') or '', '[^;]+') do
    if #kept < 20 then kept[#kept + 1] = one end
  end
  redis.call('HSET', periodic, 'recent', table.concat(kept, ';'))
end

local is_disabled = tonumber(epoch) > 0 and state[4]
local is_together = tonumber(tick) <= (tonumber(state[5]) or 0)
local is_skipped = not (is_disabled or is_together) and overlap == 'skip' and state[2] and is_live(state[2])
local exists = redis.call('EXISTS', tasks .. id) == 1
if not (is_disabled or is_skipped or exists) then
  -- The tick is ahead of `now` when the clock was set back since the caller read it.
  create_task(id, priority, math.min(tonumber(due), now + due - tick), now, {unpack(ARGV, 12)})
  redis.call('HSET', periodic, 'task', id, 'together', together)
  redis.call('HINCRBY', periodic, 'fired', 1)
  note_tick('fired', id)
end
if tonumber(epoch) > 0 then redis.call('HSET', periodic, 'epoch', epoch) end
redis.call('HSET', periodic, 'last', tick, 'schedule', schedule)
if is_disabled then
  note_tick('disabled', '')
  return 'disabled'
end
if is_skipped then
  note_tick('skipped', '')
  redis.call('HINCRBY', periodic, 'skipped', 1)
  return 'skipped'
end
return exists and 'missed' or 'fired'
