local batch, batches, finishing, pending, leases = unpack(KEYS)
local now_ms, id, epoch, lease_ms, claim = unpack(ARGV)
-- batch_renew: the lease of a batch ends lease_ms from now; in their second half the leases of its members are
--       extended, slice by slice.
-- KEYS  batch: hash · batches, finishing: zsets batch id → Unix ms · pending, leases: zsets
-- ARGV  now_ms: Unix ms or '' · id: of the batch · epoch: of the caller ·
--       lease_ms: its length · claim: that handed it out to the caller, '' when the epoch is enough
-- reply end of the lease, Unix ms, or 'lost' (nothing changed)
-- Works on a server that is full.
-- include numbers commands task_end task_leases batch

local now = read_clock(now_ms)
local read = read_batch()
if not (is_leased_as(read, epoch, now) and (read.state == 'open' or read.state == 'committed')) then return 'lost' end
-- A failover may lose a claim and give its epoch to the next claim.
if claim ~= '' and claim ~= read.claim then return 'lost' end
local ends = exact(now + lease_ms)
write_even_when_full()
redis.call('HSET', batch, 'ends', ends)
redis.call('ZADD', batches, 'XX', ends, id)
if read.state == 'open' then  -- of those only a write is there; its lease may become shorter
  redis.call('ZADD', finishing, 'XX', exact(now + lease_ms + ABANDONED_MS), id)
else
  redis.call('ZADD', finishing, 'XX', 'GT', ends, id)
end
extend_member_leases(read, now)
return ends
