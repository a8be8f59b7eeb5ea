local settings, bucket, transfers, wake = unpack(KEYS)
local now_ms, giver, generation, gift_number, leases, tokens, level, interval = unpack(ARGV)
-- slice_take: a shard receives a gift from the slices of another shard, once.
-- KEYS  settings, bucket: hashes · transfers: hash (see lib/slices.lua) · wake: zset
-- ARGV  now_ms: Unix ms or '' · giver: the shard · generation, gift_number: of the gift ·
--       leases, tokens, level, interval: what it is, and the µs in which that level is counted
-- reply 'taken'; 'had': it has it already; 'late': a later division of the limits has begun here, which gives the
--       first shard what was under way; 'early': the division in which it was given has not begun here
-- include numbers commands token_bucket slices

local now, slices = read_clock(now_ms), read_slices()
leases, tokens, level, interval = tonumber(leases), tonumber(tokens), tonumber(level), tonumber(interval)
if slices.generation ~= tonumber(generation) then
  return slices.generation < tonumber(generation) and 'early' or 'late'
end
if (number(redis.call('HGET', transfers, '<' .. giver)) or 0) >= tonumber(gift_number) then return 'had' end

redis.call('HSET', transfers, '<' .. giver, gift_number)
if leases > 0 and slices.inflight then
  redis.call('HSET', settings, 'slice_inflight', exact(slices.inflight + leases))
  redis.call('HDEL', settings, 'slice_hold')
end
if tokens > 0 and slices.tokens then
  local read = read_bucket(bucket, slices.tokens, slices.interval, now)
  redis.call('HSET', settings, 'slice_tokens', exact(slices.tokens + tokens))
  if read then
    read.level = read.level + math.floor(interval == slices.interval and level or level / interval * slices.interval)
    save(read)
  end
end
notify_worker(wake)
return 'taken'
