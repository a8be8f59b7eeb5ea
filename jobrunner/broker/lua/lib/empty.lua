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
