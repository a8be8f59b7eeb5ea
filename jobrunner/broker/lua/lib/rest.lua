-- Ends up to `count` members from position `swept` on, as the decision says of those that no row names. Returns how far
-- it came.
local function end_rest(read, swept, count, now, defaults)
  local size, first = tonumber(read.size), tonumber(read.first)
  local behind = math.min(swept + count, size)
  local ids = redis.call('LRANGE', hash_of(read.list) .. ':members', first + swept, first + behind - 1)
  local rest = {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then rest[#rest + 1] = ids[n] end
  end
  if read.rest == 'back' then
    put_back(rest, now)
  elseif read.rest == 'dead' then
    for _, one in ipairs(rest) do give_up(one, read.tries, read.error, now, defaults) end
    tally.dead = tally.dead + #rest
  else
    conclude(rest, read.rest, now)
  end
  if read.rest ~= 'dead' then tally.ended = tally.ended + #rest end
  call_sliced('ZREM', pending, rest)
  free_keys(rest)
  call_sliced('ZREM', leases, rest)
  redis.call('HSET', batch, 'swept', behind)
  return behind
end
