local batch, batches, finishing, settings = unpack(KEYS)
local now_ms, tasks, id, epoch, fate, delay_ms, reason = unpack(ARGV)
-- batch_fail: an attempt at a batch ended without a decision. The batch is due again, or its parts are, or its last
--       member dies.
-- KEYS  batch: hash · batches, finishing: zsets batch id → Unix ms · settings: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id: of the batch · epoch: of its holder ·
--       fate: 'failed' counts; so does 'blamed', which splits a batch at once; so does 'poison', which is final for a
--       member that is alone; 'divided' splits and does not count, 'released' does not count, 'dissolved' returns its
--       members to the queue ·
--       delay_ms: until a batch that failed or is released is due again · reason: why it failed
-- reply 'again', 'split', or 'dead' (the caller rolls it forward, any process a minute later), 'dissolved' (any process
--       may roll it forward now); 'more' (call again, more is staged); 'lost' (nothing changed). No staged key is left.
-- Works on a server that is full.
-- include numbers queue_settings batch

local now = read_clock(now_ms)
local read = read_batch()
if not (is_leased_as(read, epoch, now) and read.state == 'open') then return 'lost' end
redis.call('ZREM', batches, '')  -- see lib/commands.lua
if clear_staged() then return 'more' end
if fate == 'dissolved' then
  if epoch == '1' and read.list == id then redis.call('HSET', batch, 'unbegun', 1) end
  decide_without_rows('back', now)
  return 'dissolved'
end
if fate == 'failed' then return count_failure(read, 1, 0, now + delay_ms, now, reason) end
if fate == 'blamed' or fate == 'poison' then return count_failure(read, 1, 0, now + delay_ms, now, reason, fate) end
if fate == 'divided' and tonumber(read.size) > 1 then
  split(read, now, read.failures, read.expiries or 0, reason)
  return 'split'
end
redis.call('HSET', batch, 'ends', 0)
redis.call('ZADD', read.size == '0' and finishing or batches, exact(now + delay_ms), id)
return 'again'
