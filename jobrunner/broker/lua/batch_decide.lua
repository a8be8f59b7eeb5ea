local batch, batches, finishing = unpack(KEYS)
local now_ms, id, epoch, remainder, max_hops = unpack(ARGV, 1, 5)
-- batch_decide: from here on a batch is rolled forward: the rows that its writers staged under these nonces, and no
--       others.
-- KEYS  batch: hash · batches, finishing: zsets batch id → Unix ms
-- ARGV  now_ms: Unix ms or '' · id: of the batch · epoch: of its holder · remainder: the outcome of members that no
--       row names, 'succeeded' or 'dropped' · max_hops: items that move more often die, 0 = no limit · then for each
--       nonce: it, and how many rows its writer staged ('' = not said)
-- reply {'ok', target, ...}, or {'lost'}, {'missing', nonce}: the server lost some of its rows (nothing changed). Again
--       by the same holder: 'ok'.
-- include numbers batch

local now = read_clock(now_ms)
local read = read_batch()
if read.decided == epoch then return {'ok', unpack(batch_targets(read))} end
if not (is_leased_as(read, epoch, now) and read.state == 'open') then return {'lost'} end
local rows = 0
for n = 6, #ARGV, 2 do  -- a failover may have lost them, and their members would end as if no row named them
  local staged = redis.call('LLEN', batch .. ':rows:' .. epoch .. '.' .. ARGV[n]) / 4
  rows = rows + staged
  if staged < (number(ARGV[n + 1]) or 0) then return {'missing', ARGV[n]} end
end
redis.call('UNLINK', batch .. ':manifest')
for n = 6, #ARGV, 2 do redis.call('RPUSH', batch .. ':manifest', epoch .. '.' .. ARGV[n]) end
redis.call('HSET', batch, 'state', 'committed', 'rest', remainder, 'max_hops', max_hops, 'decided', epoch,
  'rows', rows)
-- The lease of a write is long, and its driver may be gone, or have left the remaining rows to other processes.
redis.call('ZADD', finishing, exact(math.min(number(read.ends), now + OWN_MS)), id)
redis.call('ZREM', batches, id)
if read.list ~= id then redis.call('HSET', batch_key(read.list), 'worked', 1) end  -- see batch_claim
return {'ok', unpack(batch_targets(read))}
