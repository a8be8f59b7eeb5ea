local minute, hour, sampled = unpack(KEYS)
local now_ms, at_ms = unpack(ARGV, 1, 2)
-- stats_sample: notes depth and totals of queues for a minute and its hour, the totals at its begin and its end.
-- KEYS  minute, hour: hashes of statistics · sampled: hash queue → its totals at the last sample, '#sampled' → when
-- ARGV  now_ms: unused · at_ms: Unix ms, of all that follows · then queue, depth, totals, ...: numbers between blanks
-- reply how many queues were noted; a queue that is empty and whose totals did not change is not
-- When totals grew that were not sampled for an hour is unknown, so their growth is left out.
local MINUTE_KEEP_S, HOUR_KEEP_S, LONGEST_GAP_MS = 90000, 2764800, 3600000

local last_at = tonumber(redis.call('HGET', sampled, '#sampled'))
local is_followed = last_at and at_ms - last_at <= LONGEST_GAP_MS
local noted = 0

local function note(queue, depth, totals)
  local before = redis.call('HGET', sampled, queue)
  if totals == before and not string.find(depth, '[1-9]') then return end
  for _, figures in ipairs({minute, hour}) do
    redis.call('HSETNX', figures, queue .. ' - from', is_followed and (before or '0') or totals)
    redis.call('HSET', figures, queue .. ' - to', totals, queue .. ' - depth', depth)
  end
  redis.call('HSET', sampled, queue, totals)
  noted = noted + 1
end

for at = 3, #ARGV, 3 do note(ARGV[at], ARGV[at + 1], ARGV[at + 2]) end
for _, figures in ipairs({minute, hour, sampled}) do redis.call('HSET', figures, '#sampled', at_ms) end
redis.call('EXPIRE', minute, MINUTE_KEEP_S)
redis.call('EXPIRE', hour, HOUR_KEEP_S)
return noted
