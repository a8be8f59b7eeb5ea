local shard_counts, settings = unpack(KEYS)
local now_ms, partitions, shards, key_shards, known = unpack(ARGV)
-- pipeline_shards: how many shards each queue of a pipeline has, and whether one of its queues has slices of limits.
--       With `shards` it sets the numbers first, if they are still `known`.
-- KEYS  shard_counts: hash of the pipeline · settings: hash of that queue
-- ARGV  now_ms: unused · partitions, shards, key_shards: the new numbers; shards '' = change nothing · known: the
--       numbers that the new ones were computed from, with blanks between them
-- reply {partitions, shards, key_shards, slice_size, max_size, slice_inflight, slice_tokens}: the fields, or nil

local function read() return redis.call('HMGET', shard_counts, 'partitions', 'shards', 'key_shards') end

local found = read()
if shards ~= '' and table.concat({found[1] or '1', found[2] or '1', found[3] or '1'}, ' ') == known then
  redis.call('HSET', shard_counts, 'partitions', partitions, 'shards', shards, 'key_shards', key_shards)
  found = read()
end
local slices = redis.call('HMGET', settings, 'slice_size', 'max_size', 'slice_inflight', 'slice_tokens')
return {found[1], found[2], found[3], unpack(slices)}
