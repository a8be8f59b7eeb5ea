local waiting, scheduled, pending, dead, done, leases, settings, counters, wake, outbox = unpack(KEYS)
local now_ms, tasks = unpack(ARGV)
-- queue_counts: how many tasks are in each state, after maintenance; O(1) but for the slice that maintenance moves.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, counters: hashes · wake: zset ·
--       outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes
-- reply {waiting, scheduled, pending, dead, done, paused ('1' or ''), counter, total, counter, total, ...}
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases
-- include error_groups dead_tasks lease_recovery maintenance
-- rarely promote
-- rarely recover_expired
-- rarely history_of trim_dead trim_done

local now = read_clock(now_ms)
-- Maintenance is bounded, and is left to others for a user who may only read: due tasks are counted in their next
-- state. It is not tried, as the server notes each refused command in its access log. (Redis 6.2 cannot be asked.)
if not redis.acl_check_cmd or redis.acl_check_cmd('ZREM', scheduled, '') then pcall(maintain, now) end
local config = read_config(now)
local due = redis.call('ZCOUNT', scheduled, '-inf', exact(last_slot_at(now)))
local ended = redis.call('ZCOUNT', pending, '-inf', exact(now))
local reply = {redis.call('ZCARD', waiting) + due + ended, redis.call('ZCARD', scheduled) - due,
  redis.call('ZCARD', pending) - ended, redis.call('ZCARD', dead), redis.call('ZCARD', done),
  config.paused and '1' or ''}
for _, word in ipairs(redis.call('HGETALL', counters)) do reply[#reply + 1] = word end
return reply
