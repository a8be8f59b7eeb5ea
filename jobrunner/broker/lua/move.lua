local pending, leases, settings, counters, wake, to_waiting, to_scheduled, to_settings, to_counters, to_arrival, to_wake = unpack(KEYS)
local now_ms, tasks, queue, to_queue, max_hops, over = unpack(ARGV, 1, 6)
-- move: pending of one queue → waiting or scheduled of another with the same tag, or of the same one, in one step.
-- KEYS  pending, leases: zsets · settings, counters: hashes · wake: zset · to_waiting, to_scheduled: zsets, of the
--       queue they enter, as all further keys · to_settings, to_counters: hashes · to_arrival: string · to_wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes (one tag) · queue, to_queue: full names ·
--       max_hops: 0 = no limit · over: '1' = they go in although the queue is full · then for each report: id, number
--       of its lease, priority ('' = as it was), delay_ms (0 = now), count of words, field, value, ... to set
-- reply a list, for each report: 'ok', or 'gone', 'not_reserved', 'lost', 'hops', 'full' (nothing changed)
-- Attempts, failures and expiries start anew; total_attempts and hops go on. Works on a server that is full.
-- include numbers commands queue_position queue_settings waiting_set task_end task_leases
-- rarely add_to_partitions

local now, ids, numbers, starts, at = read_clock(now_ms), {}, {}, {}, 7
while ARGV[at] do
  local n = #ids + 1
  ids[n], numbers[n], starts[n] = ARGV[at], ARGV[at + 1], at
  at = at + 5 + ARGV[at + 4]
end
local verdicts, live = check_leases(ids, numbers, now, queue)
if #live > 0 then write_even_when_full() end -- else a pipeline that has filled the server could never drain
local capacity = over == '1' and math.huge or capacity_left(to_settings, to_waiting, to_scheduled)
local most_hops = tonumber(max_hops) > 0 and tonumber(max_hops) or math.huge
local last = tonumber(redis.call('GET', to_arrival)) or 0
local words, ENDING = {'HSET', '', 'queue', to_queue, 'more', 1, 'retry_count', 0, 'place', 0, 'priority', 0,
  'hops', 0, 'total_attempts', 0}, {'error', 'expiries', 'expires_in_ms', 'unknown_since'}
if to_queue == queue then words[17], words[18] = 'expires_in_ms', 'never' end  -- it has begun here
local fixed, moved, ended, ready = #words, 0, {}, {}
local function move_one(id, at)
  if moved >= capacity then return 'full' end
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'retry_count', 'total_attempts', 'hops', 'priority', unpack(ENDING))
  if task.err or not task[1] then return drop_damaged(id) or 'gone' end
  local hops = (number(task[4]) or 0) + 1
  if hops > most_hops then return 'hops' end
  local priority, own = ARGV[at + 2] ~= '' and ARGV[at + 2] or task[5] or '1', tonumber(ARGV[at + 4])
  for n = 1, own do words[fixed + n] = ARGV[at + 4 + n] end
  words[2], words[12], words[14], words[16] = key, priority, hops, (number(task[3]) or 0) + (number(task[2]) or 0) + 1
  local due = now + ARGV[at + 3]
  if due > now then
    due = slot_at(to_scheduled, due)
    words[10] = place_of(priority, due)
    redis.call('ZADD', to_scheduled, due, id)
  else
    last = arrival_after(last, now)
    words[10] = place_of(priority, last)
    ready[#ready + 1], ready[#ready + 2] = words[10], id
  end
  if task[6] or task[7] or task[8] or task[9] then redis.call('HDEL', key, 'suspect', unpack(ENDING)) end
  redis.call(unpack(words, 1, fixed + own))
  moved = moved + 1
  return 'ok'
end
for _, n in ipairs(live) do
  verdicts[n] = move_one(ids[n], starts[n])
  if verdicts[n] == 'ok' or verdicts[n] == 'gone' then ended[#ended + 1] = n end
end
if #ended == 0 then return verdicts end
if #ready > 0 then
  redis.call('SET', to_arrival, exact(last))
  add_waiting(to_waiting, ready, partitioning)
end
if moved > 0 then
  redis.call('HINCRBY', to_counters, 'moved_in', moved)
  redis.call('HINCRBY', counters, 'moved_out', moved)
  notify_worker(to_wake)
end
end_leases(ids, ended)
notify_worker_if_limited(wake)
return verdicts
