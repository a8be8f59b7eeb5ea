-- Where a task joins a queue: the set, its score there, and its place in line.
local function join(waiting, scheduled, arrival, priority, due, now)
  if due > now then
    due = slot_at(scheduled, due)
    return scheduled, due, place_of(priority, due)
  end
  local arrived = arrival_after(tonumber(redis.call('GET', arrival)) or 0, now)
  redis.call('SET', arrival, exact(arrived))
  local place = place_of(priority, arrived)
  return waiting, place, place
end

-- Puts it there; a line may be sorted by key.
local function stand(set, score, id, by_key)
  if string.sub(set, -8) == ':waiting' then
    line_up(set, {score, id}, by_key)
  else
    redis.call('ZADD', set, score, id)
  end
end
