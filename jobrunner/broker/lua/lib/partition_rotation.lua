-- Hands out by key. A call sorts, judges and looks at a bounded number of tasks and keys.
local LOOKS = 500

-- Sorts what stands in `waiting` as in a queue that does not go by key: it was there before the queue was set so.
local function sort_in(own)
  local first = redis.call('ZRANGEBYSCORE', waiting, '-inf', '(' .. exact(UNSORTED), 'WITHSCORES', 'LIMIT', 0, SLICE)
  if #first == 0 then return false end
  local places = {}
  for i = 1, #first, 2 do places[i], places[i + 1] = first[i + 1], first[i] end
  park(own, places, goes_by_key(own) or {})
  return #first == 2 * SLICE
end

-- Takes the first task of a key out of its line, past up to `spare` stale entries. Returns it, how many entries were
-- stale, and whether others stand behind it; the id is nil when there is none, or none was found.
local function next_of(line, spare)
  for stale = 0, spare do
    local found = redis.call('ZRANGE', line, 0, 1, 'WITHSCORES')
    if not found[1] then return nil, stale, false end
    redis.call('ZREM', line, found[1])
    local score = redis.call('ZSCORE', waiting, found[1])
    if score and tonumber(score) == PARKED + found[2] then return found[1], stale, found[3] end
  end
  return nil, spare + 1, true
end

-- Gives the first keys of a rotation their turn. Notes in `chosen` the ids and beside them their keys. Returns the last
-- turn, and how many more looks at what cannot be handed out the call may have.
-- A key without a token is blocked although nothing more of it waits: what comes later does not put it into a rotation.
local function choose(own, band, rooms, wanted, chosen, turn, spare)
  local rotation = rotation_of(own, band)
  local keys = redis.call('ZRANGE', rotation, 0, math.min(wanted, SLICE) - 1)
  local turns, gone, full, blocked = {}, {}, {}, {}
  rooms.read(keys)
  for _, key in ipairs(keys) do
    if spare <= 0 then break end
    local has_more = true
    if rooms.of(key) >= 1 then
      local id, stale
      id, stale, has_more = next_of(line_of(own, band, key), spare)
      turn, spare = turn + 1, spare - stale
      if id then
        chosen[#chosen + 1], chosen[#chosen + 2] = id, key
        rooms.use(key, 1)
      end
    else
      spare = spare - 1
    end
    local is_at_limit = rooms.of(key) < 1
    -- join_ring checks the count of leases itself when a task comes.
    if is_at_limit and not has_more and rooms.frees_at(key) >= FAR then is_at_limit = false end
    if not (is_at_limit or has_more) then
      gone[#gone + 1] = key
    elseif is_at_limit then
      full[#full + 1], blocked[#blocked + 1], blocked[#blocked + 2] = key, exact(rooms.frees_at(key)), key
    else
      turns[#turns + 1], turns[#turns + 2] = turn, key
    end
  end
  call_sliced('ZADD', rotation, turns)
  call_sliced('ZREM', rotation, gone)
  call_sliced('ZADD', own .. 'blocked', blocked)
  for other = -1, 1 do call_sliced('ZREM', rotation_of(own, other), full) end
  return turn, spare, #keys
end

-- Hands out what was chosen. Returns the ids that were fit with their partitions, as id, partition, ..., and the
-- partitions of the others.
local function take_chosen(chosen, take, rooms)
  local ids, holders, failed = {}, {}, {}
  for i = 1, #chosen, 2 do ids[#ids + 1] = chosen[i] end
  take(ids)
  call_sliced('ZREM', waiting, ids)
  for i = 1, #chosen, 2 do
    local id, key = chosen[i], chosen[i + 1]
    if unfit[id] then
      rooms.use(key, -1)
      failed[#failed + 1] = key
    elseif key ~= '' then
      holders[#holders + 1], holders[#holders + 2] = id, key
    end
  end
  return holders, failed, #ids - #failed
end

-- Like walk_line, but key after key, within their `rooms`.
local function walk_ring(own, limits, rooms, wanted, take, now, are_leased)
  if wanted <= 0 then return 0, false end
  write_even_when_full()
  local is_cut_short, taken, spare, all = sort_in(own), 0, LOOKS, {}
  if rooms.holds then compare_some(own) end
  local turn = limits.rotation_seq or 0
  local last_turn = turn
  is_cut_short = unblock(own, limits, rooms, wanted, now, turn, are_leased) or is_cut_short
  for band = -1, 1 do
    repeat
      local chosen, looked_at = {}, 0
      turn, spare, looked_at = choose(own, band, rooms, wanted - taken, chosen, turn, spare)
      if #chosen > 0 then
        local holders, failed, fit = take_chosen(chosen, take, rooms)
        for _, word in ipairs(holders) do all[#all + 1] = word end
        taken, spare = taken + fit, spare - #failed
        -- They were to spend what their keys have: those may have a task, and room for it, after all.
        judge_keys(own, failed, rooms, turn)
      end
    until looked_at == 0 or taken >= wanted or spare <= 0
    if taken >= wanted or spare <= 0 then break end
  end
  if turn > last_turn then redis.call('HSET', settings, 'rotation_seq', turn) end
  rooms.write(all)
  return taken, (is_cut_short or spare <= 0) and taken < wanted
end
