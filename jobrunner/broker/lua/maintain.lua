local waiting, scheduled, pending, dead, done, leases, settings, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks = unpack(ARGV)
-- maintain: due scheduled → waiting, expired leases → waiting or dead, dead past their time → deleted; a bounded slice.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, counters: hashes · wake: zset ·
--       outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes
-- reply {now, next event or '' (Unix ms), how many tasks were moved}
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases error_groups
-- include dead_tasks lease_recovery maintenance
-- rarely promote
-- rarely recover_expired
-- rarely history_of trim_dead trim_done

local now = read_clock(now_ms)
local config, moved = maintain(now)
return {exact(now), next_event(config), moved}
