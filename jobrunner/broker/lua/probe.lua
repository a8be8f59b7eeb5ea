local waiting, scheduled, pending, dead, done, leases, settings, bucket, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks = unpack(ARGV)
-- probe: maintenance, and whether a reserve could hand out a task now. A worker probes many queues so, and reserves
--       from few.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, bucket, counters: hashes · wake: zset ·
--       outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes
-- reply {now, next event or '' (Unix ms), usual length of a lease (ms), 1 when there may be a task to hand out, else 0}
-- Limits of partitions are not read: a queue that has such limits may hand out nothing after a 1.
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases error_groups
-- include dead_tasks lease_recovery maintenance token_bucket
-- rarely promote
-- rarely recover_expired
-- rarely history_of trim_dead trim_done

local now = read_clock(now_ms)
local config = maintain(now)
local tokens = read_bucket(bucket, config.max_tokens, config.interval, now)
local has_capacity = config.max_inflight == math.huge or redis.call('ZCARD', pending) < config.max_inflight
local is_open = not config.paused and has_capacity and whole_tokens(tokens) >= 1
local lifts = config.paused and (config.resumes or math.huge) or refills_at(tokens, now)
local may_hand_out = is_open and redis.call('ZCARD', waiting) > 0
return {exact(now), next_event(config, lifts), exact(config.keepalive), may_hand_out and 1 or 0}
