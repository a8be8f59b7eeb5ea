local waiting, pending, dead, done, leases, settings, bucket, counters, waiters, wake, outbox, finishing, batch = unpack(KEYS)
local now_ms, tasks, queue, finished, id, count = unpack(ARGV)
-- batch_advance: rolls a decided batch forward by a bounded slice, whichever process calls: first the rows, then
--       members that no row names, then the batch itself. A row is removed in the step that applies it, so each is
--       applied once.
-- KEYS  waiting, pending, dead, done, leases: zsets · settings, bucket, counters: hashes · waiters, wake: zsets ·
--       outbox: hash · finishing: zset batch id → Unix ms · batch: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name, of the batch · finished: prefix of
--       the channels that notify waiters · id: of the batch · count: at most so many rows and members
-- reply {'more', 'full', 'done' or 'lost' (not decided), moved, new, dead, ended, skipped, target that is full or ''}
-- Works on a server that is full.
-- include numbers commands queue_position queue_settings waiting_set task_end history task_leases
-- include error_groups dead_tasks token_bucket batch batch_rows batch_items batch_apply
-- rarely refund

local NONCES = 100
local WAITING_MS = 5000  -- who waits for capacity asks more often, and others leave it the batch for so long
local now = read_clock(now_ms)
local config = read_config(now)
local read = read_batch()
local function reply(word, full)
  return {word, tally.moved, tally.new, tally.dead, tally.ended, tally.skipped, full or ''}
end
if read.state ~= 'committed' then return reply(read.state == 'done' and 'done' or 'lost') end
local budget, size, read_rows, full = tonumber(count), tonumber(read.size), {}, nil
read.tries = (tonumber(read.failures) or 0) + (tonumber(read.expiries) or 0)
read.most_hops = tonumber(read.max_hops or 0) > 0 and tonumber(read.max_hops) or math.huge
read_shared(read)
write_even_when_full()

local nonces, used_up = redis.call('LRANGE', batch .. ':manifest', 0, NONCES - 1), 0
for _, nonce in ipairs(nonces) do
  if full or budget == 0 then break end
  local rows = batch .. ':rows:' .. nonce
  local words, is_all = read_staged(rows, budget)
  local applied
  applied, full = apply_rows(words, read, now, config)
  read_rows[#read_rows + 1] = {rows, 4 * applied}
  if not full and is_all then used_up = used_up + 1 end
  budget = is_all and budget - applied or 0
end
write_target_queues()
end_members(cancelled, 'cancelled', now)
call_sliced('ZREM', pending, left_ids)
free_partitions(left_ids)
call_sliced('ZREM', leases, left_ids)
for _, applied in ipairs(read_rows) do redis.call('LTRIM', applied[1], applied[2], -1) end
if used_up > 0 then redis.call('LTRIM', batch .. ':manifest', used_up, -1) end
if tally.moved > 0 then redis.call('HINCRBY', counters, 'moved_out', tally.moved) end
if #left_ids > 0 then notify_worker_if_limited(wake) end
local left_by_rows = #left_ids > 0 and redis.call('HINCRBY', batch, 'gone', #left_ids) or tonumber(read.gone or 0)
if full then
  extend_member_leases(read, now)
  -- No worker owns a write, so it is due again before the lease under which it was claimed ends.
  redis.call('ZADD', finishing, 'XX', read.size == '0' and 'CH' or 'GT', exact(now + WAITING_MS), id)
  return reply('full', full)
end
if used_up < #nonces or #nonces == NONCES or budget == 0 then return reply('more') end

-- Parts share one lease number, so rows of one part may have ended members of another: counting suffices only for a
-- whole batch.
local is_counted_out = read.list == id and left_by_rows >= size
local swept = is_counted_out and size or tonumber(read.swept) or 0
if swept < size then
  swept = end_unnamed_members(read, swept, budget, now, config)
  notify_worker_if_limited(wake)
  if swept < size then return reply('more') end
end
return reply(finish_batch(read) and 'done' or 'more')
