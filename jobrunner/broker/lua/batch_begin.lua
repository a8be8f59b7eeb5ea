local batch, finishing = unpack(KEYS)
local now_ms, id, queue, lease_ms, attempt = unpack(ARGV, 1, 5)
-- batch_begin: a batch without members, for writes. The same id again takes it over while nothing is decided, also
--       after what was staged under it was deleted: its writer starts anew then.
-- KEYS  batch: hash · finishing: zset batch id → when anyone may finish it, Unix ms
-- ARGV  now_ms: Unix ms or '' · id: of the batch · queue: full name · lease_ms: its length ·
--       attempt: calls with the same name share the batch ('' = none)
--       then field, value, ... of every new item
-- reply {epoch, 'open', 'committed' or 'done', end of the lease (Unix ms), rows that were decided, -1 = not known,
--       target, ...}
-- A batch with an attempt is remembered for 30 days after its end, as its writer may be away for long.
-- Rows that an earlier holder staged are removed: a bounded slice at once, the rest at the end.
-- include numbers batch

local now = read_clock(now_ms)
local read = read_batch()
local is_taken_back = (read.decided or '') == '' and (read.state == 'done' or read.size == '0')
if read.state and read.state ~= 'open' and not is_taken_back then
  return {tonumber(read.epoch), read.state, '0', tonumber(read.rows) or -1, unpack(batch_targets(read))}
end
if attempt ~= '' and read.attempt == attempt and is_leased_as(read, read.epoch, now) then
  return {tonumber(read.epoch), 'open', read.ends, -1}
end
local epoch, ends = (tonumber(read.epoch) or 0) + 1, exact(now + lease_ms)
redis.call('HSET', batch, 'queue', queue, 'state', 'open', 'epoch', epoch, 'ends', ends, 'number', 0, 'list', id,
  'first', 0, 'size', 0, 'failures', 0, 'attempt', attempt)
redis.call('PERSIST', batch)
for i = 6, #ARGV, 2 do redis.call('HSET', batch, 's:' .. ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', finishing, exact(now + lease_ms + ABANDONED_MS), id)
clear_staged()
return {epoch, 'open', ends, -1}
