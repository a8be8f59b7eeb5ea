-- What a queue is made of beside its tasks; `own` is what its keys begin with.
local OWN_NOTES = {history_noted = true, history_trimmed = true, capacity_wanted = true, recheck = true, parked = true,
  rotation_seq = true}
local BANDS = {'-1', '0', '1'}
local LINES_AT_ONCE = 200

-- Whether it holds a task, a batch, word of a death that is not told, or lines of keys.
local function holds_anything(own)
  local found = redis.call('EXISTS', own .. 'waiting', own .. 'scheduled', own .. 'pending', own .. 'dead',
    own .. 'done', own .. 'leases', own .. 'batches', own .. 'finishing', own .. 'deaths')
  for _, band in ipairs(BANDS) do found = found + redis.call('EXISTS', own .. 'rotation:' .. band) end
  return found > 0
end

-- Whether somebody configured or paused it: beside what the scripts note among its settings.
local function is_configured(own)
  local fields = redis.pcall('HKEYS', own .. 'settings')
  if fields.err then return true end
  for _, field in ipairs(fields) do
    if not OWN_NOTES[field] then return true end
  end
  return false
end

-- Deletes a slice of the lines of its keys; returns whether there may be more. Where no task is left all are stale.
local function unlink_lines(own)
  for _, index in ipairs({'rotation:-1', 'rotation:0', 'rotation:1', 'blocked', 'unsure'}) do
    local keys = redis.call('ZRANGE', own .. index, 0, LINES_AT_ONCE - 1)
    for _, key in ipairs(keys) do
      for _, band in ipairs(BANDS) do redis.call('UNLINK', own .. 'partition:' .. band .. ':' .. key) end
      redis.call('UNLINK', own .. 'bucket:' .. key)
    end
    if #keys > 0 then
      redis.call('ZREM', own .. index, unpack(keys))
      return true
    end
  end
  return false
end

-- Deletes what is left of one that holds nothing.
local function unlink_rest(own)
  redis.call('UNLINK', own .. 'waiting', own .. 'scheduled', own .. 'pending', own .. 'dead', own .. 'done',
    own .. 'leases', own .. 'batches', own .. 'finishing', own .. 'deaths', own .. 'settings', own .. 'bucket',
    own .. 'counters', own .. 'types', own .. 'arrival', own .. 'wake', own .. 'capacity',
    own .. 'holders', own .. 'inflight')
end

-- The field `unused` of the totals: since when the queue was seen to be unused (Unix ms), a blank, and the sum of its
-- totals then. A sum that differs is of a queue that was used since. It is no number, so nobody takes it for a total.

-- The sum, how many died ('' for none), what the mark says, and whether there are no totals; nil when nobody can read.
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

-- Looks at a queue that may be damaged: what nobody can read is nothing. `own` is what its keys begin with.
local DEAD_KEEP_MS = 2592000000 -- as DEFAULT_DEAD_TTL_MS in queue_settings.lua

local function first_of(set)
  local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(head[2]) or math.huge
end

local function size_of(set)
  local size = redis.pcall('ZCARD', set)
  return tonumber(size) or 0
end

-- When the upkeep of a queue has something to do, Unix ms; '' when nothing is foreseen.
local function due_of(own, now)
  local due = math.min(first_of(own .. 'scheduled'), first_of(own .. 'pending'))
  local kept, over = size_of(own .. 'dead'), size_of(own .. 'done')
  if kept + over > 0 then
    local set = redis.pcall('HMGET', own .. 'settings', 'dead_ttl_ms', 'dead_max', 'history_ms', 'history_max')
    if kept > 0 then due = math.min(due, first_of(own .. 'dead') + (number(set[1]) or DEAD_KEEP_MS)) end
    local most, history = number(set[2]) or 0, history_of(set[3], set[4])
    if most > 0 and kept > most then due = now end
    if history and over > 0 then due = math.min(due, first_of(own .. 'done') + history.age) end
    if history and history.most > 0 and over > history.most then due = now end
  end
  return due < math.huge and exact(due) or ''
end
