local batch, batches, closing, pending, leases = unpack(KEYS)
local now_ms, tasks, id, epoch, lease_ms = unpack(ARGV)
-- renew: the lease of a batch ends lease_ms from now; in its second half the hold on its members is extended, slice by
--       slice.
-- KEYS  batch: hash · batches, closing: zsets batch id → Unix ms · pending, leases: zsets
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id: of the batch · epoch: of the caller ·
--       lease_ms: its length
-- reply end of the lease, Unix ms, or 'lost' (nothing changed)
-- Works on a server that is full.
-- include number clock batch full lease members held

local HOLD_MS = 604800000
local SLICE = 1000

local now = read_clock(now_ms)
local read = read_batch()
if not (is_held(read, epoch, now) and (read.state == 'open' or read.state == 'committed')) then return 'lost' end
local ends, size = exact(now + lease_ms), tonumber(read.size)
write_even_when_full()
redis.call('HSET', batch, 'ends', ends)
redis.call('ZADD', batches, 'XX', ends, id)
redis.call('ZADD', closing, 'XX', 'GT', ends, id)
if size == 0 or tonumber(read.hold) - now > HOLD_MS / 2 then return ends end

local extended = tonumber(read.extended) or 0
local first, last = read.first + extended, math.min(extended + SLICE, size) + read.first - 1
local ids, entries = redis.call('LRANGE', hash_of(read.list) .. ':members', first, last), {}
for n, is_live in ipairs(are_members(ids, read.number, now)) do
  if is_live then entries[#entries + 1], entries[#entries + 2] = exact(now + HOLD_MS), ids[n] end
end
call_sliced('ZADD', pending, entries)
if extended + SLICE < size then
  redis.call('HSET', batch, 'extended', extended + SLICE)
else
  redis.call('HSET', batch, 'hold', exact(now + HOLD_MS / 4 * 3), 'extended', 0)
end
return ends
