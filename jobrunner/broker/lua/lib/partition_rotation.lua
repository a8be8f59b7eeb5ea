-- Hands out tasks partition by partition. A call reads a bounded number of tasks and partitions.
local READS_PER_CALL = 500
-- A round of tasks is handed out as a whole, as its partitions have had their turn. So it is short: `take` may have had
-- enough bytes after the first.
local TASKS_PER_ROUND = 50

-- Adds tasks to their partitions that were waiting before the queue had any.
local function enter_partitions(prefix)
  local first = redis.call('ZRANGEBYSCORE', waiting, '-inf', '(' .. exact(UNPARTITIONED), 'WITHSCORES', 'LIMIT',
    0, SLICE)
  if #first == 0 then return false end
  local places = {}
  for i = 1, #first, 2 do places[i], places[i + 1] = first[i + 1], first[i] end
  add_to_partitions(prefix, places, partitioning_of(prefix) or {})
  return #first == 2 * SLICE
end

-- Takes the first task out of a partition, skipping up to `spare` stale entries. Returns its id, nil when none was
-- found; the number of stale entries; and whether there are more.
local function take_from_partition(index, spare)
  for stale = 0, spare do
    local found = redis.call('ZRANGE', index, 0, 1, 'WITHSCORES')
    if not found[1] then return nil, stale, false end
    redis.call('ZREM', index, found[1])
    local score = redis.call('ZSCORE', waiting, found[1])
    if score and tonumber(score) == PARTITIONED + found[2] then return found[1], stale, found[3] end
  end
  return nil, spare + 1, true
end

-- Gives the first partitions of a rotation their turn. Adds ids and their partitions to `chosen`. Returns the last
-- turn, and the number of further fruitless reads that the call may make. A partition without a token is blocked even
-- when it is empty: tasks that come later do not add it to a rotation.
local function choose_tasks(prefix, band, limiter, wanted, chosen, turn, spare)
  local rotation = rotation_key(prefix, band)
  local partitions = redis.call('ZRANGE', rotation, 0, math.min(wanted, SLICE) - 1)
  local turns, gone, at_limit, blocked = {}, {}, {}, {}
  limiter.read(partitions)
  for _, partition in ipairs(partitions) do
    if spare <= 0 then break end
    local has_more = true
    if limiter.capacity_of(partition) >= 1 then
      local id, stale
      id, stale, has_more = take_from_partition(partition_key(prefix, band, partition), spare)
      turn, spare = turn + 1, spare - stale
      if id then
        chosen[#chosen + 1], chosen[#chosen + 2] = id, partition
        limiter.use(partition, 1)
      end
    else
      spare = spare - 1
    end
    local is_at_limit = limiter.capacity_of(partition) < 1
    -- join_rotation checks the count of leases itself when a task comes.
    if is_at_limit and not has_more and limiter.frees_at(partition) >= FAR then is_at_limit = false end
    if not (is_at_limit or has_more) then
      gone[#gone + 1] = partition
    elseif is_at_limit then
      at_limit[#at_limit + 1] = partition
      blocked[#blocked + 1], blocked[#blocked + 2] = exact(limiter.frees_at(partition)), partition
    else
      turns[#turns + 1], turns[#turns + 2] = turn, partition
    end
  end
  call_sliced('ZADD', rotation, turns)
  call_sliced('ZREM', rotation, gone)
  call_sliced('ZADD', prefix .. 'blocked', blocked)
  for other = -1, 1 do call_sliced('ZREM', rotation_key(prefix, other), at_limit) end
  return turn, spare, #partitions
end

-- Hands out the chosen tasks. Returns the fit ids with their partitions, as id, partition, ..., and the partitions of
-- the unfit ones; the number of fit ids; and whether `take` is to get no more.
local function hand_out_chosen(chosen, take, limiter)
  local ids, holders, failed = {}, {}, {}
  for i = 1, #chosen, 2 do ids[#ids + 1] = chosen[i] end
  local _, stopped_at = take(ids, false)
  call_sliced('ZREM', waiting, ids)
  for i = 1, #chosen, 2 do
    local id, partition = chosen[i], chosen[i + 1]
    if unfit[id] then
      limiter.use(partition, -1)
      failed[#failed + 1] = partition
    elseif partition ~= '' then
      holders[#holders + 1], holders[#holders + 2] = id, partition
    end
  end
  return holders, failed, #ids - #failed, stopped_at
end

-- Like hand_out_in_order, but partition after partition, within their limits.
local function hand_out_by_partition(prefix, limits, limiter, wanted, take, now, are_leased)
  if wanted <= 0 then return 0, false end
  write_even_when_full()
  local is_cut_short, taken, spare, all = enter_partitions(prefix), 0, READS_PER_CALL, {}
  if limiter.counts_leases then recount_some(prefix) end
  local turn = limits.rotation_seq or 0
  local last_turn = turn
  is_cut_short = unblock_partitions(prefix, limits, limiter, wanted, now, turn, are_leased) or is_cut_short
  for band = -1, 1 do
    repeat
      local chosen, looked_at = {}, 0
      local most = math.min(wanted - taken, TASKS_PER_ROUND)
      turn, spare, looked_at = choose_tasks(prefix, band, limiter, most, chosen, turn, spare)
      if #chosen > 0 then
        local holders, failed, fit, stopped_at = hand_out_chosen(chosen, take, limiter)
        for _, word in ipairs(holders) do all[#all + 1] = word end
        taken, spare = taken + fit, stopped_at and 0 or spare - #failed
        -- Unfit tasks did not use the limits of their partitions, which may have more tasks to hand out.
        check_partitions(prefix, failed, limiter, turn)
      end
    until looked_at == 0 or taken >= wanted or spare <= 0
    if taken >= wanted or spare <= 0 then break end
  end
  if turn > last_turn then redis.call('HSET', settings, 'rotation_seq', turn) end
  limiter.write(all)
  return taken, (is_cut_short or spare <= 0) and taken < wanted
end
