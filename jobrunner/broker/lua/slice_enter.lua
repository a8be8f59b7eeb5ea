local settings, pending, transfers, wake = unpack(KEYS)
local now_ms, generation, inflight, tokens, inflight_before, tokens_before, may_exceed = unpack(ARGV, 1, 7)
-- slice_enter: begins a division of the limits of a queue in one shard other than the first, and writes its settings in
--       the same step. Its slices never grow; what they lose goes to the first shard.
-- KEYS  settings: hash · pending: zset · transfers: hash (see lib/slices.lua) · wake: zset
-- ARGV  now_ms: Unix ms or '' · generation: its number · inflight, tokens: limits of the whole queue to which the
--       slices are reduced in proportion ('' = none, nor a slice) · inflight_before, tokens_before: limits
--       before ('' = none) · may_exceed: '1' = a slice may be less than the leases that are held · then field,
--       value, ...
-- reply {slice of leases or '', slice of tokens or ''}; {'superseded', its generation} when a later one has begun
-- The same call again changes nothing, and replies the slices with which the generation began.
-- include numbers commands settings_change slices

local slices = read_slices()
if slices.generation > tonumber(generation) then return {'superseded', exact(slices.generation)} end
if slices.generation == tonumber(generation) then return begun_before() end

-- A shard without a slice had no limit: its present use becomes its slice.
local function reduced(slice, limit, before, used)
  if limit == '' then return '' end
  if not slice then return exact(used) end
  local part = before == '' and slice or math.floor(slice * limit / before)
  return exact(math.min(slice, math.max(part, used)))
end

local held = may_exceed == '1' and 0 or redis.call('ZCARD', pending)
return begin_generation(generation, reduced(slices.inflight, inflight, inflight_before, held),
  reduced(slices.tokens, tokens, tokens_before, 0), 8)
