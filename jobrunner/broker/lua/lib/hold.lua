-- The hold of a batch on its members ends a week behind the last time it was extended, and before half of that is over.
local HOLD_MS = 604800000
local HELD_SLICE = 1000

-- In the second half of the hold, a slice of the members; the hold counts as extended when all were.
local function extend_hold(read, now)
  local size = tonumber(read.size)
  if size == 0 or tonumber(read.hold) - now > HOLD_MS / 2 then return end
  local extended = tonumber(read.extended) or 0
  local first, last = read.first + extended, math.min(extended + HELD_SLICE, size) + read.first - 1
  local ids, entries = redis.call('LRANGE', hash_of(read.list) .. ':members', first, last), {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then entries[#entries + 1], entries[#entries + 2] = exact(now + HOLD_MS), ids[n] end
  end
  call_sliced('ZADD', pending, entries)
  if extended + HELD_SLICE < size then
    redis.call('HSET', batch, 'extended', extended + HELD_SLICE)
  else
    redis.call('HSET', batch, 'hold', exact(now + HOLD_MS / 4 * 3), 'extended', 0)
  end
end
