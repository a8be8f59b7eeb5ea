local settings, pending, bucket, transfers = unpack(KEYS)
local now_ms, generation, hold = unpack(ARGV, 1, 3)
-- slice_give: a shard gives parts of its slices to others, and notes each gift until it has arrived: an outbox.
-- KEYS  settings: hash · pending: zset · bucket: hash · transfers: hash (see lib/slices.lua)
-- ARGV  now_ms: Unix ms or '' · generation: in which the slices were read · hold: from now on it hands out leases up to
--       so many ('' = up to its slice) · then for each gift: shard, leases, tokens: at most so many
-- reply {shard, 'number leases tokens level interval', ...}: the gifts to these shards that may not have arrived,
--       also earlier ones; empty in another generation
-- It gives no more leases than it does not use, and of its tokens as large a part as of its slice. To a shard that a
-- gift is under way to it gives nothing, so the same call again gives nothing twice.
-- include numbers token_bucket slices

local now, slices, reply = read_clock(now_ms), read_slices(), {}
if slices.generation ~= tonumber(generation) then return reply end

-- Subtracts the level that belongs to the gift from the bucket.
local function level_of(tokens)
  local read = read_bucket(bucket, slices.tokens, slices.interval, now)
  if tokens == 0 or not read then return 0 end
  local level = math.min(math.floor(read.level / slices.tokens * tokens), read.level)
  read.level = read.level - level
  save(read)
  return level
end

local function give(shard, leases, tokens)
  local unused = math.max((slices.inflight or 0) - redis.call('ZCARD', pending), 0)
  leases, tokens = math.min(leases, unused), math.min(tokens, slices.tokens or 0)
  if leases + tokens == 0 then return end
  local last = redis.call('HINCRBY', transfers, 'gifts', 1)
  local gift = {exact(last), exact(leases), exact(tokens), exact(level_of(tokens)), exact(slices.interval or 0)}
  redis.call('HSET', transfers, '>' .. shard, table.concat(gift, ' '))
  if leases > 0 then
    slices.inflight = slices.inflight - leases
    redis.call('HSET', settings, 'slice_inflight', exact(slices.inflight))
  end
  if tokens > 0 then
    slices.tokens = slices.tokens - tokens
    redis.call('HSET', settings, 'slice_tokens', exact(slices.tokens))
  end
end

for i = 4, #ARGV, 3 do
  local shard = ARGV[i]
  local is_under_way = redis.call('HEXISTS', transfers, '>' .. shard) == 1
  if not is_under_way then give(shard, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])) end
  local gift = redis.call('HGET', transfers, '>' .. shard)
  if gift then reply[#reply + 1], reply[#reply + 2] = shard, gift end
end
if hold ~= '' and (slices.inflight or 0) > tonumber(hold) then
  redis.call('HSET', settings, 'slice_hold', hold)
else
  redis.call('HDEL', settings, 'slice_hold')
end
return reply
