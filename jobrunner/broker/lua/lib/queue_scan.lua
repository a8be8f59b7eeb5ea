-- Reads queues that may be unused or damaged. `prefix` is the prefix of a queue's keys; these are set by scripts alone.
local INTERNAL_SETTINGS = {history_noted = true, history_trimmed = true, capacity_wanted = true, recheck = true,
  parked = true, rotation_seq = true}
local BANDS = {'-1', '0', '1'}
local PARTITIONS_AT_ONCE = 200

-- Whether the queue holds a task, a batch, a death without an event yet, or partitions.
local function holds_anything(prefix)
  local found = redis.call('EXISTS', prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'pending', prefix .. 'dead',
    prefix .. 'done', prefix .. 'leases', prefix .. 'batches', prefix .. 'finishing', prefix .. 'deaths')
  for _, band in ipairs(BANDS) do found = found + redis.call('EXISTS', prefix .. 'rotation:' .. band) end
  return found > 0
end

-- Whether the queue was configured or paused; ignores settings that scripts store themselves.
local function is_configured(prefix)
  local fields = redis.pcall('HKEYS', prefix .. 'settings')
  if fields.err then return true end
  for _, field in ipairs(fields) do
    if not INTERNAL_SETTINGS[field] then return true end
  end
  return false
end

-- Deletes a slice of the queue's partitions; returns whether there may be more. In a queue without tasks all entries
-- are stale. `keeps_rates`: the partitions keep their token buckets, which expire when they are full.
local function unlink_partitions(prefix, keeps_rates)
  for _, index in ipairs({'rotation:-1', 'rotation:0', 'rotation:1', 'blocked', 'unsure'}) do
    local partitions = redis.call('ZRANGE', prefix .. index, 0, PARTITIONS_AT_ONCE - 1)
    for _, partition in ipairs(partitions) do
      for _, band in ipairs(BANDS) do redis.call('UNLINK', prefix .. 'partition:' .. band .. ':' .. partition) end
      if not keeps_rates then redis.call('UNLINK', prefix .. 'bucket:' .. partition) end
    end
    if #partitions > 0 then
      redis.call('ZREM', prefix .. index, unpack(partitions))
      return true
    end
  end
  return false
end

-- Deletes the remaining keys of an empty queue.
local function unlink_queue_keys(prefix)
  local groups = redis.pcall('ZRANGE', prefix .. 'errors', 0, -1)
  for _, group in ipairs(groups) do redis.call('UNLINK', prefix .. 'errors:' .. group) end
  redis.call('UNLINK', prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'pending', prefix .. 'dead',
    prefix .. 'done', prefix .. 'leases', prefix .. 'batches', prefix .. 'finishing', prefix .. 'deaths',
    prefix .. 'settings', prefix .. 'bucket', prefix .. 'counters', prefix .. 'types', prefix .. 'arrival',
    prefix .. 'wake', prefix .. 'capacity', prefix .. 'holders', prefix .. 'inflight',
    prefix .. 'declared', prefix .. 'errors', prefix .. 'batch_log', prefix .. 'transfers', prefix .. 'balanced',
    prefix .. 'blocked', prefix .. 'unsure')
end

-- The field `unused` of the totals: since when the queue has been unused (Unix ms), a blank, and the sum of its totals
-- then. A different sum shows that it was used since. It is not a number, so no reader takes it for a total.

-- Returns the sum, the number of deaths ('' for none), both parts of `unused`, and whether there are no totals; nil for
-- damaged totals.
local function read_totals(counters)
  local words, total, dead, since, marked = redis.pcall('HGETALL', counters), 0, '', 0, nil
  if words.err then return end
  for n = 1, #words, 2 do
    if words[n] == 'unused' then
      local at, of = string.match(words[n + 1], '^(%d+) (%d+)$')
      since, marked = tonumber(at) or 0, tonumber(of)
    else
      total = total + math.floor(number(words[n + 1]) or 0)
      if words[n] == 'dead' then dead = words[n + 1] end
    end
  end
  return total, dead, since, marked, #words == 0
end

-- The functions below treat unreadable keys as empty.
local function first_of(set)
  local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(head[2]) or math.huge
end

local function size_of(set)
  local size = redis.pcall('ZCARD', set)
  return tonumber(size) or 0
end

-- The time of a queue's next maintenance, Unix ms; '' when none is foreseen.
local function maintenance_due(prefix, now)
  local due = math.min(first_of(prefix .. 'scheduled'), first_of(prefix .. 'pending'))
  local dead_count, done_count = size_of(prefix .. 'dead'), size_of(prefix .. 'done')
  if dead_count + done_count > 0 then
    local set = redis.pcall('HMGET', prefix .. 'settings', 'dead_ttl_ms', 'dead_max', 'history_ms', 'history_max')
    if dead_count > 0 then due = math.min(due, first_of(prefix .. 'dead') + (number(set[1]) or DEFAULT_DEAD_TTL_MS)) end
    local most, history = number(set[2]) or 0, history_of(set[3], set[4])
    if most > 0 and dead_count > most then due = now end
    if history and done_count > 0 then due = math.min(due, first_of(prefix .. 'done') + history.age) end
    if history and history.most > 0 and done_count > history.most then due = now end
  end
  return due < math.huge and exact(due) or ''
end
