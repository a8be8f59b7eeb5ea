local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks, call, clash, shared = unpack(ARGV, 1, 5)
-- enqueue: nothing → waiting, or scheduled when due later. All tasks of the call or none.
-- KEYS  waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · call: name of this call, the same when it is sent
--       again, '' = no note of it · clash: 'raise' = none of the tasks when an id exists already · shared: how many of
--       the following words are field, value, ... of every task · then for each task
--       id, payload, options, field, value, ... of its own, `key` as the last field. The options are '' when it
--       has none, else with a blank in between priority ('' = default), due ('' now, '+N' in N ms, 'N' at Unix ms N),
--       count of words of its own
-- reply the positions (1 = first) of tasks whose id exists already, which stay as they are, and 0 behind them for a new
--       queue; when nothing was added: 'full' and max_size, or 'exists' and positions. Sent again it only replies again

-- Most calls have one task, which is new and due at once, for a queue that limits no enqueue. Each call pays for each
-- function and each command, so for these read_clock, arrival_after and notify_worker are written out, EXISTS looks for
-- the id (2) and for settings (1) at once, and SET replaces the last arrival unread, as it is mostly earlier.
local first, note = 6 + shared, call ~= '' and string.sub(tasks, 1, -6) .. 'sent:' .. call
local is_again = note and not redis.call('SET', note, '', 'NX', 'PX', SENT_KEEP_MS)
local time = now_ms == '' and redis.call('TIME')
local now = time and time[1] * 1000 + time[2] / 1000 or tonumber(now_ms)
local id, is_one = ARGV[first], ARGV[first + 2] == '' and not ARGV[first + 3] and not is_again
local found = is_one and redis.call('EXISTS', settings, tasks .. id, tasks .. id) or 2
local limits = found == 1 and redis.call('HMGET', settings, 'max_size', 'fair', 'key_inflight', 'key_tokens')
if found == 0 or limits and not (limits[1] or limits[2] or limits[3] or limits[4]) then
  local last = now - now % 1 + HALF + now % 1 / 2 - now % 1 / 2 % STEP
  local arrived = redis.call('SET', arrival, last, 'GET')
  if arrived and tonumber(arrived) >= last then
    last = arrived + STEP
    redis.call('SET', arrival, last)
  end
  redis.call('ZADD', waiting, last, id)
  redis.call('HSET', tasks .. id, 'id', id, 'place', last, 'payload', ARGV[first + 1], 'enqueue_time', now,
    'retry_count', '0', unpack(ARGV, 6, first - 1))
  redis.call('HINCRBY', counters, 'enqueued', 1)
  redis.call('ZADD', wake, 0, '1')
  if note and not arrived then redis.call('SET', note, '0', 'PX', SENT_KEEP_MS) end
  return arrived and {} or {0}
end
-- include numbers commands queue_position queue_settings waiting_set enqueue_call
-- rarely number slot_at read_due notify_next_producer add_one add_tasks earlier_reply note_reply withdraw_note
-- rarely add_to_partition
-- rarely add_to_partitions

if is_again then return earlier_reply(note) end
local capacity, arrived = capacity_left(settings, waiting, scheduled), redis.call('GET', arrival)
local known, added, last = {}, 1, tonumber(arrived) or 0
if found < 2 and capacity >= 1 then
  last = arrival_after(last, now)
  add_one(first, id, now, last)
  redis.call('SET', arrival, last)
else
  local ready, partitions
  known, ready, partitions, added, last = add_tasks(first, now, last, capacity)
  if not ready then return withdraw_note(note, known) end
  if partitioning then
    add_to_partitions(string.sub(waiting, 1, -8), ready, partitioning, partitions)
  else
    call_sliced('ZADD', waiting, ready)
  end
  if ready[1] or added > 0 and not arrived then redis.call('SET', arrival, last) end
end

if added > 0 then
  if not arrived then known[#known + 1] = 0 end
  redis.call('HINCRBY', counters, 'enqueued', added)
  notify_worker(wake)
  if capacity_wanted and capacity_wanted > now then notify_next_producer(settings, waiting, scheduled, wake) end
end
if note and known[1] then note_reply(note, known) end
return known
