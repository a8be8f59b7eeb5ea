-- Where a task joins a queue: the set, its score there, and its place in line.
local function join(waiting, scheduled, arrival, priority, due, now)
  if due > now then
    due = slot_at(scheduled, due)
    return scheduled, due, place_of(priority, due)
  end
  local place = place_of(priority, note_arrival(arrival, now))
  return waiting, place, place
end
