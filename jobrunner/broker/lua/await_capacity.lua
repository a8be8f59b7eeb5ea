local waiting, scheduled, settings = unpack(KEYS)
local now_ms, lasts_ms = unpack(ARGV)
-- await_capacity: notes that a producer waits for capacity of a full queue; until then, calls that take tasks out of it
--       wake a producer.
-- KEYS  waiting, scheduled: zsets · settings: hash
-- ARGV  now_ms: Unix ms or '' · lasts_ms: how long the note holds
-- reply how many more tasks the queue may hold now; -1: as many as there are
-- include numbers queue_settings

redis.call('HSET', settings, 'capacity_wanted', exact(read_clock(now_ms) + lasts_ms))
local capacity = capacity_left(settings, waiting, scheduled)
return capacity == math.huge and -1 or math.max(capacity, 0)
