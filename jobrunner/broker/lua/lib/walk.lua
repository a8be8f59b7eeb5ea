local function walk_within(limits, wanted, take, now, are_leased)
  local read = read_bucket(bucket, limits.max_tokens, limits.interval, now)
  wanted = math.min(wanted, whole_tokens(read))
  local taken, is_cut_short, lifts = 0, false, limits.paused and limits.resumes or math.huge
  local own = string.sub(waiting, 1, -8)
  if limits.by_key then
    local rooms = read_rooms(own, limits, now, are_leased)
    taken, is_cut_short = walk_ring(own, limits, rooms, wanted, take, now, are_leased)
    if not limits.paused then lifts = math.min(lifts, unblocks_at(own, now)) end
  elseif limits.parked and wanted > 0 then
    local most = math.min(wanted, SLICE)
    write_even_when_full()
    unpark(own, most + SLICE)
    taken, is_cut_short = walk_line(most, take)
    is_cut_short = is_cut_short or taken == most and most < wanted
  else
    taken, is_cut_short = walk_line(wanted, take)
  end
  pay(read, taken)
  if limits.capacity_wanted and limits.capacity_wanted > now and taken > 0 then hint_room(wake) end
  if not limits.paused then lifts = math.min(lifts, refills_at(read, now)) end
  return taken, is_cut_short, lifts
end

-- Hands out up to `wanted` tasks by `take`, within the rate of the queue, in line or by key as it is set. Returns how
-- many, whether the bound on one call ended it, and when a limit lifts, Unix ms.
local function walk(limits, wanted, take, now, are_leased)
  if limits.by_key and redis.call('ZCARD', waiting) == 0 then return 0, false, math.huge end
  if limits.paused or limits.max_tokens or limits.by_key or limits.capacity_wanted or limits.parked then
    return walk_within(limits, wanted, take, now, are_leased)
  end
  local taken, is_cut_short = walk_line(wanted, take)
  return taken, is_cut_short, math.huge
end
