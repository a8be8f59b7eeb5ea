local waiting, scheduled, settings = unpack(KEYS)
local now_ms, lasts_ms = unpack(ARGV)
-- want: notes that somebody waits for room in a full queue; for so long, whoever takes tasks out hints that there is.
-- KEYS  waiting, scheduled: zsets · settings: hash
-- ARGV  now_ms: Unix ms or '' · lasts_ms: how long the note holds
-- reply how many more tasks the queue may hold now; -1: as many as there are
-- include number clock size

redis.call('HSET', settings, 'room_wanted', exact(read_clock(now_ms) + lasts_ms))
local room = room_in(settings, waiting, scheduled)
return room == math.huge and -1 or math.max(room, 0)
