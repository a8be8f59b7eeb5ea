local set, counters, settings = unpack(KEYS)
local now_ms, tasks, before, counter = unpack(ARGV)
-- delete_archived: deletes a bounded slice of what stands in a set since before an instant, index and hash together.
-- KEYS  set: zset, dead or done · counters, settings: hashes
-- ARGV  now_ms: unused · tasks: prefix of the task hashes · before: Unix ms, exclusive ·
--       counter: the total it counts for
-- reply how many were deleted; called until it is 0
-- include number clock trimmed trim

-- A part of a microsecond, which is the finest step of the server's clock.
local LESS = 1 / 2048
local gone, newest = trim(set, before - LESS, 0)
if gone > 0 then
  redis.call('HINCRBY', counters, counter, gone)
  if counter == 'history_archived' then note_trimmed(settings, newest) end
end
return gone
