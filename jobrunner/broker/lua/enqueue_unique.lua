local waiting, scheduled, settings, counters, arrival, wake, lock = unpack(KEYS)
local now_ms, tasks, base, tag, queue, call, id, priority, due, lasts, ttl_ms, on_clash, bound_to = unpack(ARGV, 1, 13)
-- enqueue_unique: enqueues one task unless its lock is held: then the holder stays, is replaced or rescheduled.
-- KEYS  waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset · lock: string, the end
--       of the lock (Unix ms), a blank and the id of the task that has it
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · base: prefix of the keys of its tag · tag ·
--       queue: full name · call: name of this call, the same when it is sent again · id · priority: '' = default ·
--       due: '' now, '+N' in N ms, 'N' at Unix ms N · lasts: 'started' or 'finished' or 'expired', the end of the lock,
--       which is `ttl_ms` behind the due time at the latest · ttl_ms · on_clash: 'replace', 'reschedule' or '' ·
--       bound_to: id, a blank and queue of the task that the payload is encrypted or signed for, '' = plain ·
--       then field, value, ...
-- reply {'new', 'exists' (its id), 'replaced', 'rescheduled' or 'clash', id of the task that is there now, for a new
--       queue also its name and 'first'}; {'full', max_size}; {'encrypt_for', id, queue}: encrypt the payload for these
-- The state of the task decides whether it holds the lock, so no step can forget to release it when a task ends.
-- include numbers commands queue_position queue_settings waiting_set partition_limits enqueue_call

local note = string.sub(tasks, 1, -6) .. 'sent:' .. call
local earlier = call ~= '' and redis.call('GET', note)
if earlier then  -- what it replaced may be finished by now
  local word, is_first, there = string.match(earlier, '^(%S+) (%S+) (.*)$')
  return is_first == '1' and {'new', id, queue, 'first'} or {word or 'new', there or id}
end
local function applied(word, there, is_first)
  if call ~= '' then redis.call('SET', note, word .. ' ' .. is_first .. ' ' .. there, 'PX', SENT_KEEP_MS) end
  return is_first == 1 and {word, there, queue, 'first'} or {word, there}
end
local now = read_clock(now_ms)
local when = read_due(due, now)
local function take_lock(id)
  local ends = math.max(when, now) + ttl_ms
  redis.call('SET', lock, exact(ends) .. ' ' .. id, 'PX', exact(math.ceil(ends - now)))
end
local ITS_OPTIONS = {'headers', 'encoding', 'max_attempts', 'max_stalled', 'keepalive_ms', 'key'}  -- it may have none
local function is_for_another(id, queue) return bound_to ~= '' and bound_to ~= id .. ' ' .. queue end

-- Gives the holder, which has not begun, the position and the time to start of the new task.
local function put_instead(holder, prefix, state, task)
  if on_clash == 'replace' and is_for_another(holder, task[1]) then return {'encrypt_for', holder, task[1]} end
  local set, score, place =
    position_for(prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'arrival', priority, when, now)
  local key, brings = tasks .. holder, on_clash == 'replace' and 14 or #ARGV + 1
  local starts_in, since = time_to_start(prefix, task_field(14, 'expires_in_ms')), number(task[4])
  leave_partition(prefix, holder, true)
  redis.call('HDEL', key, 'priority', 'expires_in_ms', unpack(on_clash == 'replace' and ITS_OPTIONS or {}))
  redis.call('HSET', key, 'place', place, 'more', 1, unpack(ARGV, brings))  -- `more`: a reserve reads place, priority
  if starts_in and since then redis.call('HSET', key, 'expires_in_ms', exact(now - since + starts_in)) end
  if priority ~= '' then redis.call('HSET', key, 'priority', priority) end
  insert(set, score, holder)
  if prefix .. state ~= set then redis.call('ZREM', prefix .. state, holder) end
  take_lock(holder)
  notify_worker(prefix .. 'wake')
  return applied(on_clash == 'replace' and 'replaced' or 'rescheduled', holder, 0)
end

-- Asked before the lock: a call that is sent again without a note may find that another task holds it by now.
if redis.call('EXISTS', tasks .. id) == 1 then return {'exists', id} end
local ends, holder = string.match(redis.call('GET', lock) or '', '^(%S+) (.+)$')
if holder and holder ~= id and tonumber(ends) > now then
  local prefix, state, task = place_of_holder(holder, lock, now)
  local begun = state == 'pending' or state and (number(task[2]) or 0) + (number(task[9]) or 0) > 0
  if state and not begun and has_expired(prefix, task, now) then state = nil end  -- no reserve has met it yet
  if state and not begun and on_clash ~= '' then return put_instead(holder, prefix, state, task) end
  if lasts == 'expired' or state and not (lasts == 'started' and begun) then return {'clash', holder} end
end
if is_for_another(id, queue) then return {'encrypt_for', id, queue} end
if is_at_capacity(settings, waiting, scheduled) then return full_reply(settings) end
local is_first = redis.call('SETNX', arrival, '0')
create_task(id, priority, when, now, {'queue', queue, unpack(ARGV, 14)})
take_lock(id)
return applied('new', id, is_first)
