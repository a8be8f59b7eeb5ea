-- Hands out what was chosen. Returns the ids that were fit with their keys, as id, key, ..., and the keys of the others.
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
