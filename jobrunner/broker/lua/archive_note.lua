local key = unpack(KEYS)
local now_ms, verb = unpack(ARGV, 1, 2)
-- archive_note: one write of `history archive`, as a script because a full server would refuse the command: the run
--       frees its memory.
-- KEYS  key: the writer of the archive (string) or its state (hash)
-- ARGV  now_ms: unused · verb: SET, HSET or HSETNX · then its words behind the key
-- reply that of the command
-- Works on a server that is full.

-- Counts as a write that frees memory, but changes nothing, also in a key of another type (see write_even_when_full).
redis.pcall('ZREM', key, '')
return redis.call(verb, key, unpack(ARGV, 3))
