local waiting, pending, dead, leases, settings, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks, queue, reason, worker = unpack(ARGV, 1, 5)
-- crash: pending → waiting at the original position, or → dead when the attempts are spent: tasks that had begun when
--       their worker died. Each counts as an expired lease.
-- KEYS  waiting, pending, dead, leases: zsets · settings, counters: hashes · wake: zset · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · reason: how the worker died ·
--       worker: its id, or ''
--       then for each report: id, number of its lease, '1' when it may be to blame, else ''
-- reply a list, for each report: 'waiting' or 'dead', or 'gone', 'not_reserved', 'lost' (nothing changed)
-- Works on a server that is full.
-- include numbers commands queue_position queue_settings waiting_set task_end task_leases error_groups dead_tasks
-- include lease_recovery
-- rarely has_ended reason_of drop_damaged bury

local now = read_clock(now_ms)
local ids, numbers, starts = read_reports(6, 3)
local verdicts, live = check_leases(ids, numbers, now, queue)
local config, known = read_config(now), worker ~= '' and worker or nil
if #live > 0 then write_even_when_full() end

for _, n in ipairs(live) do
  verdicts[n] = recover_task(now, ids[n], numbers[n], config, reason, known, ARGV[starts[n] + 2] == '1')
end
end_leases(ids, live)
if #live > 0 then notify_worker(wake) end
return verdicts
