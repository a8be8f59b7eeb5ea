local waiting, scheduled, pending, dead, done, leases, settings, bucket, counters, wake, outbox, batches, batch = unpack(KEYS)
local now_ms, tasks, queue, id, epoch, had, count, lease, lease_ms, turn = unpack(ARGV)
-- batch_fill: waiting → pending, the first `count` in the queue, as members of a batch, which is new or was just begun.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · settings, bucket, counters: hashes · wake: zset ·
--       outbox: hash · batches: zset batch id → Unix ms · batch: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · id: of the batch ·
--       epoch: of the caller · had: members it has by now, 0 for a new one · count: at most so many more ·
--       lease: number of all its leases · lease_ms: length of the batch's own · turn: counts the calls for this batch,
--       from 1 on; a call that is sent again has the same
-- reply {how many members it has, end of its lease (Unix ms), 1 if more may wait, as a bound ended the call}, or
--       {'lost'}, {'half'} (nothing changed): parts of a batch are ranges of their root's list
-- In a queue that keeps history the field `started_at` of a member is the time when it was handed out.
-- The same call again changes nothing in a batch that exists, even if it comes late or found no tasks before. Unfit
--       tasks are dropped and limits hold, as for reserve.
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases error_groups
-- include dead_tasks lease_recovery maintenance token_bucket partition_limits partition_rotation queue_scan hand_out
-- include batch
-- rarely promote
-- rarely recover_expired bury drop_damaged
-- rarely history_of trim_dead trim_done
-- rarely hand_out_limited

local now = read_clock(now_ms)
local read = read_batch()
local is_new = not read.state
if is_new and had ~= '0' or not is_new and not (is_leased_as(read, epoch, now) and read.state == 'open') then
  return {'lost'}
end
if not is_new and read.list ~= id then return {'half'} end
local is_over = not is_new and (read.size ~= had or tonumber(turn) <= (tonumber(read.turn) or 0))
if is_over then return {tonumber(read.size), read.ends, 1} end
count = tonumber(count)
local config = maintain(now, count)
local member_lease_end, members = exact(now + MEMBER_LEASE_MS), batch .. ':members'

local function hand_out(ids)
  local ends, numbers, taken = {}, {}, {}
  for n = 1, #ids do
    local one = ids[n]
    local task = redis.pcall('HMGET', tasks .. one, 'id', 'expires_in_ms', 'enqueue_time', 'retry_count',
      'cancel_requested')
    if not is_unfit(one, task.err or not task[1], task[2], task[3], task[4], task[5], now, config) then
      local at = 2 * #taken
      ends[at + 1], ends[at + 2], numbers[at + 1], numbers[at + 2] = member_lease_end, one, lease, one
      taken[#taken + 1] = one
      if config.history then redis.pcall('HSET', tasks .. one, 'started_at', exact(now)) end
    end
  end
  call_sliced('RPUSH', members, taken)
  call_sliced('ZADD', pending, ends)
  call_sliced('ZADD', leases, numbers)
  return #taken
end

local free = config.max_inflight < math.huge and config.max_inflight - redis.call('ZCARD', pending) or math.huge
local taken, is_cut_short, lifts = hand_out_tasks(config, math.min(count, config.at_most, free), hand_out, now, true)
is_cut_short = is_cut_short or taken < count and soonest_event(config, lifts) <= now
if taken == 0 then
  if not is_new then redis.call('HSET', batch, 'turn', turn) end
  return {tonumber(had), read.ends or '', is_cut_short and 1 or 0}
end
local ends = exact(now + lease_ms)
if is_new then
  redis.call('HSET', batch, 'queue', queue, 'state', 'open', 'epoch', epoch, 'number', lease, 'list', id, 'first', 0,
    'failures', 0, 'hold', member_lease_end, 'users', 1)
end
redis.call('HSET', batch, 'size', had + taken, 'ends', ends, 'turn', turn)
redis.call('ZADD', batches, ends, id)
if redis.call('ZCARD', waiting) > 0 then notify_worker(wake) end
return {had + taken, ends, is_cut_short and 1 or 0}
