local pending, done, leases, settings, counters, waiters, wake, outbox = unpack(KEYS)
local now_ms, tasks, queue, finished, id, lease, keep_ms, onward, max_hops = unpack(ARGV, 1, 9)
-- fan_out: pending → finished, as succeeded, and new tasks into waiting or scheduled of queues with the same tag, in
--       one step.
-- KEYS  pending, done, leases: zsets · settings, counters: hashes · waiters, wake: zsets · outbox: hash · then for each
--       target waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the
--       channels that notify waiters · id · lease: its number · keep_ms: 0 = delete · onward: '' = of no flow; else
--       the joins to notify of its end · max_hops: 0 = no limit · then for each child: id, number of its target
--       (0 = first), priority ('' = as the parent's), delay_ms (0 = now), '1' when it goes in although the queue is
--       full, count of words, field, value, ... of its hash
-- reply 'ok', 'gone', 'not_reserved', 'lost', 'hops' or 'full' (all but 'ok' changed nothing)
-- A child whose id exists is left as it is. Children have the parent's partition, and one hop more. An empty queue is
-- never full: otherwise more children than it may hold would wait for ever.
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases
-- rarely add_to_partitions

local now = read_clock(now_ms)
local refused = check_leases({id}, {lease}, now, queue)
if refused[1] then return refused[1] end
local parent = redis.pcall('HMGET', tasks .. id, 'id', 'hops', 'priority', 'key', 'type')
if parent.err or not parent[1] then return drop_leased(id) end
local hops = (number(parent[2]) or 0) + 1
if tonumber(max_hops) > 0 and hops > tonumber(max_hops) then return 'hops' end


local targets, children, new, at = read_targets(9), {}, {}, 10
while ARGV[at] do
  local target = targets[ARGV[at + 1] + 1]
  if not new[ARGV[at]] and redis.call('EXISTS', tasks .. ARGV[at]) == 0 then
    children[#children + 1], new[ARGV[at]], target.total = at, true, target.total + 1
    if ARGV[at + 4] ~= '1' then target.in_need = target.in_need + 1 end
  end
  at = at + 6 + ARGV[at + 5]
end
for _, target in ipairs(targets) do
  if target.in_need > target.capacity and not target.is_empty then return 'full' end
end

for _, at in ipairs(children) do
  local target, due = targets[ARGV[at + 1] + 1], now + ARGV[at + 3]
  local priority, is_later = ARGV[at + 2] ~= '' and ARGV[at + 2] or parent[3] or '1', due > now
  if is_later then due = slot_at(target.scheduled, due) else due = arrival_after(target.last, now) end
  local place, ready = place_of(priority, due), target.ready
  redis.call('HSET', tasks .. ARGV[at], 'id', ARGV[at], 'place', place, 'enqueue_time', exact(now), 'retry_count', 0,
    'hops', hops, 'more', 1, 'priority', priority, unpack(ARGV, at + 6, at + 5 + ARGV[at + 5]))
  if parent[4] then redis.call('HSET', tasks .. ARGV[at], 'key', parent[4]) end
  if is_later then
    redis.call('ZADD', target.scheduled, due, ARGV[at])
  else
    target.last, ready[#ready + 1], ready[#ready + 2] = due, place, ARGV[at]
  end
end
fill_targets(targets)

local has_waiters, history = redis.call('EXISTS', waiters) == 1, read_history()
local own_keep = own_keep_ms(keep_ms, parent[5], history)
local is_usual = not own_keep and is_usual_end(keep_ms, 'succeeded', '', history)
local ttl_ms = ttl_for(keep_ms, history)
if end_task(id, ttl_ms, 'succeeded', '', exact(now), has_waiters, is_usual, nil, own_keep) then
  unlink({tasks .. id})
end
post(onward, 'succeeded', '')
if history then add_to_history({id}, now, history) end
redis.call('HINCRBY', counters, 'succeeded', 1)
end_leases({id}, {1})
notify_worker_if_limited(wake)
return 'ok'
