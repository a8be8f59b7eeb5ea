local first = unpack(KEYS)
local now_ms = unpack(ARGV)
-- glance: whether there is anything for the leader to do, in one call for many queues. Changes nothing.
-- KEYS  first: counters of a queue (hash) or the workers (zset worker id → Unix ms), then further ones
-- ARGV  now_ms: unused
-- reply beside the keys: {1 when the outbox of its tag holds anything, 1 when batches of it are closing, how many tasks
--       of it died: the field, '' for none, nil when nobody can read it}; {id, ...}: the workers that fell silent
-- The other keys of a queue are named by its counters, and those of workers by their set, so on a cluster all that are
-- given must be of one slot: the driver divides the call.
local MOST_WORKERS = 1000 -- those that were heard longest ago: a silent one moves up to them

local function silent(workers)
  local found, worker = {}, string.sub(workers, 1, -2) .. ':'
  for _, id in ipairs(redis.call('ZRANGE', workers, 0, MOST_WORKERS - 1)) do
    if redis.call('EXISTS', worker .. id) == 0 then found[#found + 1] = id end
  end
  return found
end

local function look(counters)
  local of_tag, own = string.match(counters, '^.-}:'), string.sub(counters, 1, -9)
  local dead = redis.pcall('HGET', counters, 'dead') or ''
  return {redis.call('EXISTS', of_tag .. 'outbox'), redis.call('EXISTS', own .. 'closing'), not dead.err and dead}
end

local replies = {}
if not first then return replies end
for n, key in ipairs(KEYS) do replies[n] = (string.sub(key, -9) == ':counters' and look or silent)(key) end
return replies
