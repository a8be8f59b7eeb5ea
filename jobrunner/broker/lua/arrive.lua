local joining, waiting, scheduled, counters, arrival, wake, outbox = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- arrive: members of a join ended. What its rule waits for has come when the last one ended, for 'dead' when the first
--       one died: then the prepared task is enqueued, or what waits behind it is told that it will never be.
-- KEYS  joining: hash · waiting, scheduled: zsets, of the prepared task's queue · counters: hash · arrival: string ·
--       wake: zset · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then for each arrival:
--       member (0 = first), outcome ('succeeded', 'dead', 'cancelled'), result (JSON or '')
-- reply 'noted', 'fired' (the task is enqueued), 'posted' (the outbox has word for others) or 'gone' (no such join)
-- The same arrival again changes nothing.
-- include number clock place join wake due enter post gather launch

local now = read_clock(now_ms)
local state = redis.call('HMGET', joining, 'rule', 'total', 'ttl_ms', 'fired', 'results', 'f:then')
local rule, total, given, onward = state[1], tonumber(state[2]), state[5], state[6]
if not (rule and total) then return 'gone' end

-- A death is not the end: the task may be put back into its queue and succeed. It is replaced, any other end stays.
local function note(member, outcome, result)
  local noted = redis.call('HGET', joining, 'm' .. member)
  local before = noted and string.match(noted, '^%a+')
  if before and (before ~= 'dead' or outcome == 'dead') then return false end
  redis.call('HSET', joining, 'm' .. member, outcome .. ':' .. result)
  if before then redis.call('HINCRBY', joining, before, -1) end
  redis.call('HINCRBY', joining, outcome, 1)
  return true
end

local changed = false
if not state[4] then
  for i = 3, #ARGV, 3 do changed = note(ARGV[i], ARGV[i + 1], ARGV[i + 2]) or changed end
end
redis.call('PEXPIRE', joining, state[3])
if not changed or rule == 'tally' then return 'noted' end

local counted = redis.call('HMGET', joining, 'succeeded', 'dead', 'cancelled')
local succeeded, dead = tonumber(counted[1]) or 0, tonumber(counted[2]) or 0
local ended = succeeded + dead + (tonumber(counted[3]) or 0)
local verdict = succeeded == total and 'succeeded' or dead > 0 and 'dead' or 'cancelled'

local is_met = rule == 'complete' and ended == total or rule == 'success' and verdict == 'succeeded'
if is_met or rule == 'dead' and dead > 0 then
  local results, outcomes = results_of(joining, total, given)
  launch(joining, results, outcomes, now)
  return 'fired'
end
if ended < total or rule == 'dead' then return 'noted' end
local result = verdict == 'succeeded' and results_of(joining, total, given) or ''
if verdict ~= 'dead' then redis.call('HSET', joining, 'fired', verdict) end
return post(onward, verdict, result) and 'posted' or 'noted'
