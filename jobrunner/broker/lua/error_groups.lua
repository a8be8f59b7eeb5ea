local first = unpack(KEYS)
local now_ms, group, brief = unpack(ARGV)
-- error_groups: reads the groups of errors of some queues. Changes nothing.
-- KEYS  first: index of the groups of a queue (zset), then those of further queues
-- ARGV  now_ms: unused · group: id of the only one to read, '' = all · brief: '1' reads no counts by time
-- reply a list, for each key: an error's text for a queue that cannot be read, or {how many of its tasks are dead,
--       id of a group, {field, value, ...}, ...}, the groups that were seen last first
-- The other keys of a queue are named by its index, so on a cluster all of them must be of one slot: the driver divides
-- the call.

local function fields_of(key)
  if brief ~= '1' then return redis.pcall('HGETALL', key) end
  local read = redis.pcall('HMGET', key, 'definition', 'first', 'last', 'task', 'dead')
  return read[1] and {'definition', read[1], 'first', read[2] or '', 'last', read[3] or '', 'task', read[4] or '',
    'dead', read[5] or ''} or {}
end

local function groups_of(index)
  local dead = redis.pcall('ZCARD', string.sub(index, 1, -7) .. 'dead')
  local ids = redis.pcall('ZREVRANGE', index, 0, -1)
  if not tonumber(dead) or ids.err then return ids.err or dead.err end
  local reply = {dead}
  for _, id in ipairs(group ~= '' and {group} or ids) do
    local fields = fields_of(index .. ':' .. id)
    if fields[1] then reply[#reply + 1], reply[#reply + 2] = id, fields end
  end
  return reply
end

local replies = {}
if not first then return replies end
for n, index in ipairs(KEYS) do replies[n] = groups_of(index) end
return replies
