local worker, workers = unpack(KEYS)
local now_ms, id, ttl_ms = unpack(ARGV, 1, 3)
-- announce: a sign of life of a worker, with what it says of itself.
-- KEYS  worker: hash, expires when the worker falls silent · workers: zset worker id → Unix ms
-- ARGV  now_ms: Unix ms or '' · id: of the worker · ttl_ms: how long the sign lasts · then field, value, ...
-- reply 1
-- include clock

redis.call('HSET', worker, unpack(ARGV, 4))
redis.call('PEXPIRE', worker, ttl_ms)
redis.call('ZADD', workers, exact(read_clock(now_ms)), id)
return 1
