local waiting, scheduled, settings, counters, arrival, wake = unpack(KEYS)
local now_ms, tasks, shared = unpack(ARGV, 1, 3)
-- enqueue: nothing → waiting, or scheduled when due later. All tasks of the call or none.
-- KEYS  waiting, scheduled: zsets · settings, counters: hashes · arrival: string · wake: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · shared: how many of the following words are
--       field, value, ... of every task · then for each task
--       id, payload, wishes, field, value, ... of its own. The wishes are '' when it has none, else with a blank in
--       between priority ('' = default), due ('' now, '+N' in N ms, 'N' at Unix ms N), count of words of its own
-- reply the positions (1 = first) of tasks whose id exists already: those are left as they are; or 'full'
-- include number clock place due wake batch size room
-- rarely number slot_at read_due hint_room

local now, last = read_clock(now_ms), tonumber(redis.call('GET', arrival)) or 0
local words = {'HSET', '', 'id', '', 'place', 0, 'payload', '', 'enqueue_time', exact(now), 'retry_count', '0',
  unpack(ARGV, 4, 3 + shared)}
local fixed = #words

local keys, counts, total, given, at = {}, {}, 0, ARGV, 4 + shared  -- `given`: a local is read faster than a global
while given[at] do
  total = total + 1
  keys[total] = tasks .. given[at]
  counts[total] = given[at + 2] == '' and 0 or tonumber(string.match(given[at + 2], '%d+$'))
  at = at + 3 + counts[total]
end
local old, written = count_existing(keys), {}
if is_full(settings, waiting, scheduled, total - old) then return 'full' end

-- One that is due later has more to say to who takes it: when that was.
local function write(key, at, own, place, is_later)
  words[2], words[4], words[6], words[8] = key, given[at], place, given[at + 1]
  for n = 1, own do words[fixed + n] = given[at + 2 + n] end
  if is_later then words[fixed + own + 1], words[fixed + own + 2], own = 'more', 1, own + 2 end
  redis.call(unpack(words, 1, fixed + own))
  written[key] = true
end

local known, ready, size, later = {}, {}, 0, 0
at = 4 + shared
for position = 1, total do
  local key, own, id, priority, due = keys[position], counts[position], given[at], '', now
  if given[at + 2] ~= '' then
    priority, due = string.match(given[at + 2], '^(%S*) (%S*)')
    due = read_due(due, now)
  end
  if written[key] or old > 0 and redis.call('EXISTS', key) == 1 then
    known[#known + 1] = position
  elseif due > now then
    due = slot_at(scheduled, due)
    write(key, at, own, place_of(priority, due), true)
    redis.call('ZADD', scheduled, due, id)
    later = later + 1
  else
    last = arrival_after(last, now)
    ready[size + 1], ready[size + 2], size = place_of(priority, last), id, size + 2
    write(key, at, own, ready[size - 1])
  end
  at = at + 3 + own
end

if size > 0 then
  call_sliced('ZADD', waiting, ready)
  redis.call('SET', arrival, exact(last))
end
if size + later > 0 then
  redis.call('HINCRBY', counters, 'enqueued', size / 2 + later)
  wake_one(wake)
  -- Who waited behind the one that was told of room has his turn now, if there is still some.
  if room_wanted and room_wanted > now and not is_full(settings, waiting, scheduled, 1) then hint_room(wake) end
end
return known
