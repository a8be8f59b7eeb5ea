local waiting, scheduled, pending, dead, done, leases, settings, bucket, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks, count, first_lease, keepalive_ms, most_bytes = unpack(ARGV)
-- reserve: waiting → pending, the first `count` in the queue, each under a lease of its own.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, bucket, counters: hashes · wake: zset ·
--       outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · count: at most so many · first_lease: number of the
--       first lease, new for each call; the others count on · keepalive_ms: where tasks name none, '' = the queue's ·
--       most_bytes: of payloads, beyond which no more are handed out
-- reply {now, next event or '', end of a lease of the usual length (Unix ms), usual length (ms), usual max_attempts,
--       1 if the queue keeps history, else 0, then for each lease: id, type, payload, enqueue_time, more}; more is nil
--       for a task that never failed and has no options, else {retry_count, max_attempts, keepalive_ms, headers,
--       encoding, expires_in_ms, then, place, priority, unknown_since, suspect, cancel_requested (nil)}
-- No lease when empty, paused or at a limit: fewer than `count` when a limit allows fewer. (`rarely`: see scripts.py)
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases error_groups
-- include dead_tasks lease_recovery maintenance token_bucket partition_limits partition_rotation queue_scan hand_out
-- rarely promote
-- rarely recover_expired bury drop_damaged
-- rarely history_of trim_dead trim_done
-- rarely hand_out_limited drop_partitions
-- rarely is_unfit lease_length

local now, count = read_clock(now_ms), tonumber(count)
local config = maintain(now, count)
local keepalive = number(keepalive_ms) or config.keepalive
local usual_end = exact(now + keepalive)
local reply = {exact(now), '', usual_end, exact(keepalive), exact(config.max_attempts), config.history and 1 or 0}
local lease, last, bytes_left = tonumber(first_lease), #reply, tonumber(most_bytes)

local function hand_out(ids, may_stop)
  local ends, numbers, at, soonest, stopped_at = {}, {}, 0, math.huge, nil
  for n = 1, #ids do
    local id = ids[n]
    local task = redis.pcall('HMGET', tasks .. id, 'type', 'payload', 'enqueue_time', 'more')
    local type, payload, enqueue_time, more = task[1], task[2], task[3], task[4]
    if more then
      more = redis.call('HMGET', tasks .. id, 'retry_count', 'max_attempts', 'keepalive_ms', 'headers', 'encoding',
        'expires_in_ms', 'then', 'place', 'priority', 'unknown_since', 'suspect', 'cancel_requested')
    end
    local is_damaged, rare = not (type or payload), more or {}
    if (is_damaged or more or config.expires_in)
      and is_unfit(id, is_damaged, rare[6], enqueue_time, rare[1], rare[12], now, config) then
      config.foreseen = nil
    else
      local own_end = more and more[3] and now + (lease_length(more[3]) or keepalive)
      ends[at + 1], ends[at + 2], soonest = own_end or usual_end, id, math.min(soonest, own_end or now + keepalive)
      numbers[at + 1], numbers[at + 2], at = lease, id, at + 2
      reply[last + 1], reply[last + 2], reply[last + 3], reply[last + 4] = id, type, payload, enqueue_time
      reply[last + 5], lease, last = more, lease + 1, last + 5
      -- Only history reports how long tasks waited and ran.
      if config.history then redis.pcall('HSET', tasks .. id, 'started_at', reply[1]) end
      if payload then bytes_left = bytes_left - #payload end
      if bytes_left <= 0 then stopped_at = n if may_stop then break end end
    end
  end
  if config.foreseen then config.foreseen = math.min(config.foreseen, soonest) end
  call_sliced('ZADD', pending, ends)
  call_sliced('ZADD', leases, numbers)
  return at / 2, stopped_at
end

local free = config.max_inflight < math.huge and config.max_inflight - redis.call('ZCARD', pending) or math.huge
local taken, is_cut_short, lifts = hand_out_tasks(config, math.min(count, config.at_most, free), hand_out, now, true)
if is_cut_short then
  reply[2] = reply[1]
elseif taken < count or count == 0 then
  reply[2] = next_event(config, lifts)
end
if taken > 0 and (is_cut_short or taken == count) and redis.call('ZCARD', waiting) > 0 then notify_worker(wake) end
return reply
