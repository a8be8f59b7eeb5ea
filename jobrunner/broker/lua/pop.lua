local waiting, scheduled, pending, dead, done, leases, settings, bucket, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks, count, most_bytes = unpack(ARGV)
-- pop: waiting → out of the queue, the first `count` in it: at most once, nothing comes back.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, bucket, counters: hashes · wake: zset ·
--       outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · count: at most so many ·
--       most_bytes: of payloads, beyond which no more are taken out
-- reply list of {id, type, payload, headers, encoding, then, retry_count}; empty when nothing waits, the queue is
--       paused or has no tokens; nil when the bound on one call ended it before any was found
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases error_groups
-- include dead_tasks lease_recovery maintenance token_bucket partition_limits partition_rotation queue_scan hand_out
-- rarely promote
-- rarely recover_expired bury drop_damaged
-- rarely history_of trim_dead trim_done
-- rarely hand_out_limited drop_partitions

count = tonumber(count)
local now = read_clock(now_ms)
local config = maintain(now, count)
local reply, history, bytes_left = {}, read_history(), tonumber(most_bytes)

local function take_out(ids, may_stop)
  local taken, types, stopped_at = {}, {}, nil
  for n, id in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. id, 'type', 'payload', 'headers', 'encoding', 'enqueue_time',
      'expires_in_ms', 'then', 'retry_count', 'cancel_requested')
    local is_damaged = task.err or not (task[1] or task[2] or task[5])
    if not is_unfit(id, is_damaged, task[6], task[5], task[8], task[9], now, config) then
      post(task[7], 'succeeded', '')
      reply[#reply + 1] = {id, task[1], task[2], task[3], task[4], task[7], task[8]}
      taken[#taken + 1], types[#types + 1] = id, task[1] or ''
      if task[2] then bytes_left = bytes_left - #task[2] end
      if bytes_left <= 0 then stopped_at = n if may_stop then break end end
    end
  end
  retire(taken, types, now, history)
  if #taken > 0 then redis.call('HINCRBY', counters, 'succeeded', #taken) end
  return #taken, stopped_at
end

local taken, is_cut_short, lifts = hand_out_tasks(config, math.min(count, config.at_most), take_out, now, false)
if redis.call('ZCARD', waiting) > 0 then notify_worker(wake) end
if taken == 0 and (is_cut_short or soonest_event(config, lifts) <= now) then return false end
return reply
