local minute, hour, total = unpack(KEYS)
local now_ms, writer, report = unpack(ARGV, 1, 3)
-- stats_add: adds the counts of a worker to the statistics of a minute, of its hour, and since the prefix exists; once.
-- KEYS  minute, hour, total: hashes field → number
-- ARGV  now_ms: unused · writer: id of the worker · report: number of this report, each higher than the one before ·
--       then field, by, ...
-- reply 1, or 0 when this report was noted before (nothing changed)
local MINUTE_KEEP_S, HOUR_KEEP_S = 90000, 2764800

local noted = tonumber(redis.call('HGET', minute, '#' .. writer))
if noted and noted >= tonumber(report) then return 0 end
for _, figures in ipairs({hour, total}) do redis.call('HLEN', figures) end -- damage: half a report would be sent again
for _, figures in ipairs({minute, hour, total}) do
  for at = 4, #ARGV, 2 do redis.call('HINCRBY', figures, ARGV[at], ARGV[at + 1]) end
end
redis.call('HSET', minute, '#' .. writer, report)
redis.call('EXPIRE', minute, MINUTE_KEEP_S)
redis.call('EXPIRE', hour, HOUR_KEEP_S)
return 1
