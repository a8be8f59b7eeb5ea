local waiting, scheduled, pending, dead, leases, settings, counters, arrival, wake, waiters, outbox = unpack(KEYS)
local now_ms, tasks, queue, finished, worker, groups = unpack(ARGV, 1, 6)
-- fail: pending → scheduled after a delay, → waiting without one, → dead when the report says so or the attempts are
--       spent.
-- KEYS  waiting, scheduled, pending, dead, leases: zsets · settings, counters: hashes · arrival: string ·
--       wake, waiters: zsets · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the channels
--       that notify waiters · worker: id of the reporting worker, or '' · groups: how many groups of errors follow ·
--       then for each of these: its id, definition (lines: job, class, message, place, release), '1' to note time
--       and task; and for each report: id, number of its lease, delay_ms (0: it waits behind what is there), 'retry',
--       'dead' or 'unbegun' (retry; no worker knew its job), error (text), number of its group
-- reply a list, for each report: 'scheduled' (to be tried again, also at once), 'dead', or 'gone', 'not_reserved',
--       'lost' (nothing changed)
-- Works on a server that is full.
-- include numbers commands queue_position queue_settings waiting_set task_end task_leases
-- include error_groups dead_tasks
-- rarely has_ended reason_of drop_damaged bury notify_waiters
-- rarely add_to_partitions
-- rarely free_partitions
-- rarely begin_bucket count_unreported

local now = read_clock(now_ms)
local ids, numbers, starts = read_reports(7 + 3 * groups, 6)
local verdicts, live = check_leases(ids, numbers, now, queue)
local config = read_config(now)
if #live > 0 then write_even_when_full() end

local tasks_read, failed, died = {}, {}, {}

local function fail_one(id, at, task)
  local key, error_text, group_at = tasks .. id, ARGV[at + 4], 4 + 3 * ARGV[at + 5]
  local attempts = (number(task[2]) or 0) + 1
  count_one(task[6], 'failed')
  if task[7] then redis.call('HDEL', key, 'suspect') end
  if task[9] and ARGV[at + 3] ~= 'unbegun' then redis.call('HDEL', key, 'unknown_since') end
  note_failure(key, task[5], now, attempts, 'failed', worker, error_text)
  local group = count_in_group(ARGV[group_at], ARGV[group_at + 1], failed[ARGV[at + 5]], id, now,
    ARGV[group_at + 2] ~= '')
  if ARGV[at + 3] == 'dead' or is_spent(attempts, number(task[3]) or config.max_attempts) then
    redis.call('HSET', key, 'retry_count', attempts, 'more', 1)
    if bury(id, now, error_text, config, group) then died[group] = (died[group] or 0) + 1 end
    notify_waiters(id, 'dead')
    return 'dead'
  end
  local due = task[8] and now or now + ARGV[at + 2]  -- the next reserve cancels what is to be cancelled
  local set, score, place = position_for(waiting, scheduled, arrival, task[4], due, now)
  redis.call('HSET', key, 'retry_count', attempts, 'more', 1, 'error', error_text, 'place', place)
  insert(set, score, id, config.is_partitioned)
  return 'scheduled'
end

for _, n in ipairs(live) do
  local task = redis.pcall('HMGET', tasks .. ids[n], 'id', 'retry_count', 'max_attempts', 'priority', 'failures',
    'type', 'suspect', 'cancel_requested', 'unknown_since')
  if task.err or not task[1] then
    drop_damaged(ids[n])
    verdicts[n] = 'gone'
  else
    local group = ARGV[starts[n] + 5]
    tasks_read[n], failed[group] = task, (failed[group] or 0) + 1
  end
end
for _, n in ipairs(live) do
  if tasks_read[n] then verdicts[n] = fail_one(ids[n], starts[n], tasks_read[n]) end
end
for group, many in pairs(died) do count_dead(group, many) end
end_leases(ids, live, config.key_inflight > 0)
if #live > 0 then notify_worker(wake) end
return verdicts
