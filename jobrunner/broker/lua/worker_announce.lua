local worker, workers, commands = unpack(KEYS)
local now_ms, id, ttl_ms = unpack(ARGV, 1, 3)
-- worker_announce: a heartbeat of a worker, with its description. Forgets workers that were silent for a day.
-- KEYS  worker: hash, expires when heartbeats stop · workers: zset worker id → Unix ms · commands: hash
-- ARGV  now_ms: Unix ms or '' · id: of the worker · ttl_ms: how long the heartbeat lasts · then field, value, ...
-- reply {commands, names, now}: {command, value, ...} for the worker to carry out; {name, ...} of parameters to
--       hide, nil where this user may not read them; the server's clock, nil when now_ms is given
-- Works on a server that is full.
-- include numbers

local now = read_clock(now_ms)
redis.call('ZREMRANGEBYSCORE', workers, '-inf', exact(now - 86400000))
redis.call('HSET', worker, unpack(ARGV, 4))
redis.call('PEXPIRE', worker, ttl_ms)
redis.call('ZADD', workers, exact(now), id)
local hidden = redis.pcall('SMEMBERS', string.sub(workers, 1, -8) .. 'redact')
return {redis.call('HGETALL', commands), not hidden.err and hidden, now_ms == '' and exact(now)}
