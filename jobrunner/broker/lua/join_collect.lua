local joining, collected, waiting, scheduled, dead, settings, counters, arrival, wake, waiters, outbox = unpack(KEYS)
local now_ms, tasks, finished = unpack(ARGV)
-- join_collect: adds a slice of the members' results to those that a large join has collected; after the last one the
--       prepared task is enqueued, or the joins behind this one are notified. When the results are too large, the task
--       is dead.
-- KEYS  joining, collected: hashes · waiting, scheduled, dead: zsets, of the prepared task's queue ·
--       settings, counters: hashes · arrival: string · wake, waiters: zsets · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · finished: prefix of the channels that notify waiters
-- reply 'more' (call again), 'fired' (the task is enqueued), 'posted' (the outbox has an entry), 'pass' (what
--       is collected is too large for the outbox: take it part by part to the joins behind, then call `join_pass_on`),
--       'dead' (the task is, and the outbox may have an entry), 'noted' (nothing to collect) or 'gone' (no such join)
-- Any process may call it at any time: the progress is in the join itself.
-- include numbers commands queue_position queue_settings waiting_set partition_limits task_end error_groups dead_tasks
-- include join_results

local now = read_clock(now_ms)
local state = redis.call('HMGET', joining, 'rule', 'total', 'ttl_ms', 'fired', 'results', 'f:then', 'gathered')
local rule, total, fixed_results, onward = state[1], tonumber(state[2]), state[5], state[6]
if not (rule and total) then return 'gone' end
if state[4] or not state[7] then return 'noted' end

redis.call('PEXPIRE', joining, state[3])
-- Collecting starts again from the first member when the collected results were deleted.
local from = redis.call('EXISTS', collected) == 1 and tonumber(state[7]) or 0
if from < total then
  local at = gather_slice(joining, collected, from, total, fixed_results)
  if at then
    redis.call('PEXPIRE', collected, state[3])
    redis.call('HSET', joining, 'gathered', at)
    return 'more'
  end
  redis.call('UNLINK', collected)
  if rule ~= 'pass' then
    bury_join_task(joining, total, now, read_config(now))
    return 'dead'
  end
  redis.call('HSET', joining, 'fired', 'dead')
  return post(onward, 'dead', '') and 'posted' or 'noted'
end

if rule == 'pass' then
  local whole = collected_whole(collected)
  if not whole then return 'pass' end
  redis.call('HSET', joining, 'fired', 'succeeded')
  redis.call('UNLINK', collected)
  return post(onward, 'succeeded', whole) and 'posted' or 'noted'
end
-- No copy: that hash becomes the hash of the task.
local key = tasks .. redis.call('HGET', joining, 'id')
redis.call('HDEL', collected, 'size', 'piece')
redis.call('PERSIST', collected)
redis.call('RENAME', collected, key)
start_join_task(joining, {}, now)
return 'fired'
