-- Several queues that a script adds tasks to. Their keys stand in KEYS from `first` on, six each: waiting, scheduled,
-- settings, counters, arrival, wake.
local function read_targets(first)
  local targets = {}
  for at = first, #KEYS, 6 do
    local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS, at, at + 5)
    targets[#targets + 1] = {scheduled = scheduled, waiting = waiting, counters = counters, arrival = arrival,
      wake = wake, room = room_in(settings, waiting, scheduled), last = tonumber(redis.call('GET', arrival)) or 0,
      is_empty = redis.call('ZCARD', waiting) + redis.call('ZCARD', scheduled) == 0,
      ready = {}, total = 0, in_need = 0}
  end
  return targets
end

-- Puts what is `ready`, as place, id, ..., in line.
local function fill_targets(targets)
  for _, target in ipairs(targets) do
    if #target.ready > 0 then
      redis.call('SET', target.arrival, exact(target.last))
      line_up(target.waiting, target.ready)
    end
    if target.total > 0 then
      redis.call('HINCRBY', target.counters, 'enqueued', target.total)
      wake_one(target.wake)
    end
  end
end
