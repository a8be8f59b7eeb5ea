local workers = unpack(KEYS)
local now_ms, worker, most = unpack(ARGV)
-- list_workers: reads the last heartbeats of all workers, in one call. Changes nothing.
-- KEYS  workers: zset worker id → Unix ms
-- ARGV  now_ms: unused · worker: prefix of the hashes of workers · most: at most so many, the latest first
-- reply {{id, {field, value, ...}}, ...} without those whose heartbeats stopped

local found = {}
for _, id in ipairs(redis.call('ZREVRANGE', workers, 0, most - 1)) do
  local said = redis.pcall('HGETALL', worker .. id)
  if not said.err and #said > 0 then found[#found + 1] = {id, said} end
end
return found
