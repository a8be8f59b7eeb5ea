local waiting, pending, settings, bucket, counters, transfers = unpack(KEYS)
local now_ms = unpack(ARGV)
-- slice_read: the slices of one shard, and its use and backlog. Changes nothing.
-- KEYS  waiting, pending: zsets · settings, bucket, counters: hashes · transfers: hash (see lib/slices.lua)
-- ARGV  now_ms: Unix ms or ''
-- reply {generation, slice of leases, slice of tokens, hold ('' = none), interval_us, max_inflight, max_tokens: fields
--       or '', 1 when it is paused, else 0, how many wait, how many are pending, whole tokens, how many were enqueued
--       in all, then for each gift that may not have arrived: shard, 'number leases tokens level interval'}
-- include numbers token_bucket slices

local now, slices = read_clock(now_ms), read_slices()
local set = redis.call('HMGET', settings, 'slice_inflight', 'slice_tokens', 'slice_hold', 'interval_us', 'max_inflight',
  'max_tokens', 'paused')
local is_paused = set[7] and (set[7] == '1' or (number(set[7]) or 0) > now)
local tokens = read_bucket(bucket, slices.tokens, slices.interval, now)
local reply = {slices.generation, set[1] or '', set[2] or '', set[3] or '', set[4] or '', set[5] or '', set[6] or '',
  is_paused and 1 or 0, redis.call('ZCARD', waiting), redis.call('ZCARD', pending),
  tokens and whole_tokens(tokens) or 0, number(redis.call('HGET', counters, 'enqueued')) or 0}
local noted = redis.call('HGETALL', transfers)
for i = 1, #noted, 2 do
  if string.sub(noted[i], 1, 1) == '>' then
    reply[#reply + 1], reply[#reply + 2] = string.sub(noted[i], 2), noted[i + 1]
  end
end
return reply
