local settings, pending, transfers, wake = unpack(KEYS)
local now_ms, generation, inflight, tokens, inflight_others, tokens_others, may_exceed = unpack(ARGV, 1, 7)
-- slice_settle: ends a division of the limits of a queue. Its first shard gets the rest, so that all
--       slices add up to the limit; writes its settings in the same step.
-- KEYS  settings: hash · pending: zset · transfers: hash (see lib/slices.lua) · wake: zset
-- ARGV  now_ms: Unix ms or '' · generation: its number · inflight, tokens: the limits of the whole queue ('' = none) ·
--       inflight_others, tokens_others: the slices with which the others began · may_exceed: '1' = the slice may be
--       less than the leases that are held · then field, value, ...
-- reply {slice of leases or '', slice of tokens or ''}; {'superseded', number of the last generation} when a later one
--       was asked for; {'held', leases here} when there are too many leases for the limit. Nothing changed then.
-- The same call again changes nothing, and replies the slices with which the generation began.
-- include numbers commands settings_change slices

local last, slices = redis.call('HGET', settings, 'slice_allocated') or '0', read_slices()
if last ~= generation then return {'superseded', last} end
if slices.generation == tonumber(generation) then return begun_before() end

local held = redis.call('ZCARD', pending)
local least = may_exceed == '1' and 0 or held
local own_inflight = inflight ~= '' and inflight - inflight_others or math.huge
local own_tokens = tokens ~= '' and tokens - tokens_others or math.huge
if own_inflight < least or own_tokens < 0 then return {'held', exact(held)} end
return begin_generation(generation, inflight ~= '' and exact(own_inflight) or '',
  tokens ~= '' and exact(own_tokens) or '', 8)
