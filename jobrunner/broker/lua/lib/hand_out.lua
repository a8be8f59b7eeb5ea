-- Passes ids from the front of the queue to `take` until `wanted` of them were fit: later ids replace unfit ones.
-- `take` returns the number of fit ids and, when it is to get no more, the position of the last id that it took.
-- Returns the number of fit ids, and whether a bound ended the call: too many unfit ids, or `take`.
local function hand_out_in_order(wanted, take)
  if wanted <= 0 then return 0, false end -- far below 0 when a limit was lowered under what is leased
  local taken, looked_at, bound = 0, 0, wanted + SLICE
  while taken < wanted and looked_at < bound do
    local ids = redis.call('ZRANGE', waiting, 0, wanted - taken - 1)
    if #ids == 0 then return taken, false end
    if looked_at == 0 then write_even_when_full() end
    local fit, stopped_at = take(ids, true)
    taken, looked_at = taken + fit, looked_at + #ids
    redis.call('ZREMRANGEBYRANK', waiting, 0, (stopped_at or #ids) - 1)
    if stopped_at then return taken, taken < wanted end
  end
  return taken, looked_at >= bound
end

-- For a queue that has no partitions any more: returns a slice of the tasks in partitions to their positions in the
-- queue, in order and before any task is handed out, so that old and new tasks keep their order. It removes before it
-- adds, so it works on a server that is full.
local function leave_partitions(prefix, most)
  local first = redis.call('ZRANGEBYSCORE', waiting, exact(UNPARTITIONED), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  if #first == 0 then
    for _ = 1, 6 do  -- one list each, with what tasks that were deleted left in the indexes
      if not unlink_partitions(prefix) then return redis.call('HDEL', settings, 'parked', 'recheck', 'rotation_seq') end
    end
    return
  end
  local places = {}
  for i = 1, #first, 2 do
    local id, place, partition = first[i], first[i + 1] - PARTITIONED, partition_of(first[i])
    local index = partition_key(prefix, band_of(place), partition)
    redis.call('ZREM', index, id)
    -- The score of a partitioned task lost the last digits of its place; the hash has all of them.
    local noted = number(redis.call('HGET', tasks .. id, 'place'))
    places[i], places[i + 1] = noted and math.abs(noted - place) < 1 and noted or place, id
  end
  call_sliced('ZADD', waiting, places)
end

local function hand_out_limited(config, wanted, take, now, are_leased)
  local read = read_bucket(bucket, config.max_tokens, config.interval, now)
  wanted = math.min(wanted, whole_tokens(read))
  local prefix, lifts = string.sub(waiting, 1, -8), config.paused and config.resumes or math.huge
  local taken, is_cut_short
  if config.is_partitioned then
    local limiter = read_partition_limits(prefix, config, now, are_leased)
    taken, is_cut_short = hand_out_by_partition(prefix, config, limiter, wanted, take, now, are_leased)
    -- While the limit of the queue itself is used up, the limits of its partitions lift nothing.
    if not config.paused and wanted > 0 then lifts = math.min(lifts, unblocks_at(prefix, now)) end
  elseif config.parked and wanted > 0 then
    local most = math.min(wanted, SLICE)
    leave_partitions(prefix, most + SLICE)
    taken, is_cut_short = hand_out_in_order(most, take)
    is_cut_short = is_cut_short or taken == most and most < wanted
  else
    taken, is_cut_short = hand_out_in_order(wanted, take)
  end
  pay(read, taken)
  if config.capacity_wanted and config.capacity_wanted > now and taken > 0 then notify_producer(wake) end
  if not config.paused then lifts = math.min(lifts, refills_at(read, now)) end
  return taken, is_cut_short, lifts
end

-- Deletes a slice of what partitions without tasks left: those at a limit whose tasks are all taken, and what versions
-- before left of tasks that were cancelled or deleted. The next task of a partition checks its limits.
local function drop_partitions(prefix)
  local left = redis.call('EXISTS', rotation_key(prefix, -1), rotation_key(prefix, 0), rotation_key(prefix, 1),
    prefix .. 'blocked', prefix .. 'unsure')
  if left > 0 then unlink_partitions(prefix, true) end
end

-- Hands out up to `wanted` tasks through `take`, within the rate of the queue, in order or by partition. Returns their
-- number, whether the bound on one call ended it, and the time at which a limit lifts, Unix ms.
local function hand_out_tasks(config, wanted, take, now, are_leased)
  if config.is_partitioned and redis.call('ZCARD', waiting) == 0 then
    drop_partitions(string.sub(waiting, 1, -8))
    return 0, false, math.huge
  end
  if config.paused or config.max_tokens or config.is_partitioned or config.capacity_wanted or config.parked then
    return hand_out_limited(config, wanted, take, now, are_leased)
  end
  local taken, is_cut_short = hand_out_in_order(wanted, take)
  return taken, is_cut_short, math.huge
end
