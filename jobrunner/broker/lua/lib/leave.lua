-- Takes the tasks at the `live` positions out of their leases: the last step of a report. `is_limited` is false where
-- the caller knows that no key of the queue has a limit.
local function end_leases(ids, live, is_limited)
  local over = at_positions(ids, live)
  call_sliced('ZREM', pending, over)
  call_sliced('ZREM', leases, over)
  if is_limited ~= false then free_keys(over) end
end
