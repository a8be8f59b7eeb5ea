-- The queues that the rows of a batch go to: places are given in memory, and written once for a slice of rows.
local prefix, path = string.sub(tasks, 1, -6), string.match(queue, '^.*/') or ''
local lines = {}

local function line_to(to)
  local known = lines[to]
  if known then return known end
  local line = prefix .. to .. ':'
  known = {base = line, name = path .. to, waiting = line .. 'waiting', scheduled = line .. 'scheduled', ready = {},
    last = tonumber(redis.call('GET', line .. 'arrival')) or 0, moved_in = 0, enqueued = 0,
    room = room_in(line .. 'settings', line .. 'waiting', line .. 'scheduled')}
  lines[to] = known
  return known
end

-- Gives an item its place there. Returns it. A line without a schedule (of what is dead at once) knows no delay.
local function put_into(line, one, priority, delay_ms, now)
  line.room = line.room - 1
  if delay_ms > 0 and line.scheduled then
    local due = slot_at(line.scheduled, now + delay_ms)
    redis.call('ZADD', line.scheduled, due, one)
    return place_of(priority, due)
  end
  line.last = arrival_after(line.last, now)
  local place, at = place_of(priority, line.last), #line.ready
  line.ready[at + 1], line.ready[at + 2] = place, one
  return place
end

local function write_lines()
  for _, line in pairs(lines) do
    line_up(line.waiting, line.ready)
    if #line.ready > 0 then redis.call('SET', line.base .. 'arrival', exact(line.last)) end
    for _, counter in ipairs({'moved_in', 'enqueued'}) do
      if line[counter] > 0 then redis.call('HINCRBY', line.base .. 'counters', counter, line[counter]) end
    end
    if line.moved_in + line.enqueued > 0 then wake_one(line.base .. 'wake') end
  end
end
