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

-- Most calls have one task, which is new and due at once, for a known queue that limits no enqueue. Each call pays for
-- each function that it creates, so for these read_clock, arrival_after and notify_worker are written out.
local first, note = 6 + shared, call ~= '' and string.sub(tasks, 1, -6) .. 'sent:' .. call
local is_again = note and not redis.call('SET', note, '', 'NX', 'PX', SENT_KEEP_MS)
local arrived, time = redis.call('GET', arrival), now_ms == '' and redis.call('TIME')
local now = time and time[1] * 1000 + time[2] / 1000 or tonumber(now_ms)
local id, last, is_one = ARGV[first], tonumber(arrived) or 0, ARGV[first + 2] == '' and not ARGV[first + 3]
is_one = is_one and not is_again and redis.call('EXISTS', tasks .. id) == 0
local limits = redis.call('HMGET', settings, 'max_size', 'fair', 'key_inflight', 'key_tokens')
if is_one and arrived and not (limits[1] or limits[2] or limits[3] or limits[4]) then
  last = math.max(last + STEP, now - now % 1 + HALF)
  redis.call('HSET', tasks .. id, 'id', id, 'place', last, 'payload', ARGV[first + 1], 'enqueue_time', now,
    'retry_count', '0', unpack(ARGV, 6, first - 1))
  redis.call('ZADD', waiting, last, id)
  redis.call('SET', arrival, last)
  redis.call('HINCRBY', counters, 'enqueued', 1)
  redis.call('ZADD', wake, 0, '1')
  return {}
end
-- include numbers commands queue_position queue_settings waiting_set enqueue_call
-- rarely number slot_at read_due notify_next_producer add_tasks earlier_reply note_reply withdraw_note
-- rarely add_to_partition
-- rarely add_to_partitions

if is_again then return earlier_reply(note) end
local capacity, known, added = capacity_left(settings, waiting, scheduled), {}, 1
if is_one and capacity >= 1 then
  last = arrival_after(last, now)
  redis.call('HSET', tasks .. id, 'id', id, 'place', last, 'payload', ARGV[first + 1], 'enqueue_time', now,
    'retry_count', '0', unpack(ARGV, 6, first - 1))
  if partitioning then
    local partition = ARGV[first - 2] == 'key' and ARGV[first - 1] or ''
    add_to_partition(string.sub(waiting, 1, -8), last, id, partition, partitioning)
  else
    redis.call('ZADD', waiting, last, id)
  end
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
