-- An enqueue that was applied does nothing when the client sends it again because the reply was lost; by then its tasks
-- may be finished and deleted, so their ids cannot tell. Each call leaves a note, a string that expires; its value is
-- the reply. (The idea is that of idempotent producers in Kafka.)
local SENT_KEEP_MS = '10000'

local function note_known(note, known)
  redis.call('SET', note, table.concat(known, ' '), 'PX', SENT_KEEP_MS)
end

-- The positions that the call was answered before.
local function reply_before(note)
  local known = {}
  for position in string.gmatch(redis.call('GET', note) or '', '%d+') do known[#known + 1] = tonumber(position) end
  return known
end

-- 'exists' and the positions of hashes that exist, or that stand before in the list; nil when there are none.
local function positions_there(hashes)
  local found, seen = {'exists'}, {}
  for n, hash in ipairs(hashes) do
    if seen[hash] or redis.call('EXISTS', hash) == 1 then found[#found + 1] = n end
    seen[hash] = true
  end
  return found[2] and found
end

-- Nothing was added, so the call may be made anew.
local function take_back(note, reply)
  if note then redis.call('DEL', note) end
  return reply
end

-- The tasks of an enqueue, which stand in `given` from `first` on: the keys of their hashes, beside them how many words
-- each has of its own, and how many they are.
local function read_given(given, first)
  local keys, counts, total, at = {}, {}, 0, first
  while given[at] do
    total = total + 1
    keys[total] = tasks .. given[at]
    counts[total] = given[at + 2] == '' and 0 or tonumber(string.match(given[at + 2], '%d+$'))
    at = at + 3 + counts[total]
  end
  return keys, counts, total
end

-- Writes the hashes of all of them, and puts those that are due later into the schedule. Returns the positions of tasks
-- that exist already, what comes to wait as place, id, ..., beside these tasks what limits go by, how many tasks were
-- added, and the last arrival. Or what refuses them all, and nothing else.
local function add_given(first, now, last, room)
  local given = ARGV  -- a local is read faster than a global
  local keys, counts, total = read_given(given, first)
  local old, written = count_existing(keys), {}
  local refused = clash == 'raise' and positions_there(keys) or total - old > room and total > old and 'full'
  if refused then return refused end
  local words = {'HSET', '', 'id', '', 'place', 0, 'payload', '', 'enqueue_time', now, 'retry_count', '0',
    unpack(given, 6, first - 1)}
  local fixed, shared_key = #words, given[first - 2] == 'key' and given[first - 1] or ''
  -- One that is due later has more to say to who takes it: when that was.
  local function write(key, at, own, place, is_later)
    words[2], words[4], words[6], words[8] = key, given[at], place, given[at + 1]
    for n = 1, own do words[fixed + n] = given[at + 2 + n] end
    if is_later then words[fixed + own + 1], words[fixed + own + 2], own = 'more', 1, own + 2 end
    redis.call(unpack(words, 1, fixed + own))
    written[key] = true
  end
  local known, ready, limited_by, size, later, at = {}, {}, {}, 0, 0, first
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
      last, size = arrival_after(last, now), size + 1
      ready[2 * size - 1], ready[2 * size] = place_of(priority, last), id
      local own_key = partitioning and own > 0 and given[at + 1 + own] == 'key' and given[at + 2 + own]
      limited_by[size] = own_key or shared_key
      write(key, at, own, ready[2 * size - 1])
    end
    at = at + 3 + own
  end
  return known, ready, limited_by, size + later, last
end
