local joining, waiting, scheduled, counters, arrival, wake, outbox = unpack(KEYS)
local now_ms, tasks = unpack(ARGV, 1, 2)
-- join_arrive: members of a join ended. Its rule is met when the last one ended, for 'dead' when the first one died:
--       then the prepared task is enqueued, or the joins behind it are notified that it never will be.
-- KEYS  joining: hash · waiting, scheduled: zsets, of the prepared task's queue · counters: hash · arrival: string ·
--       wake: zset · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · then for each arrival:
--       member (0 = first), outcome ('succeeded', 'dead', 'cancelled'), result (JSON, '', or '@<pieces>:<bytes>' for
--       one whose pieces are here; see join_arrive_part.lua)
-- reply 'noted', 'fired' (the task is enqueued), 'posted' (the outbox has an entry), 'more' (the join is large:
--       call `join_collect` until it replies something else) or 'gone' (no such join)
-- The same arrival again changes nothing.
-- include numbers commands queue_position waiting_set task_end join_results

local now = read_clock(now_ms)
local state = redis.call('HMGET', joining, 'rule', 'total', 'ttl_ms', 'fired', 'results', 'f:then', 'gathered',
  'succeeded', 'dead', 'cancelled')
local rule, total, fixed_results, onward = state[1], tonumber(state[2]), state[5], state[6]
if not (rule and total) then return 'gone' end
local known = (tonumber(state[8]) or 0) + (tonumber(state[9]) or 0) + (tonumber(state[10]) or 0)
if not state[4] and (rule == 'dead' or known + (#ARGV - 2) / 3 >= total) then check_keys() end

-- A death is not final: the task may be requeued and succeed, and that outcome replaces it. Any other outcome stays.
local function note(member, outcome, result)
  local noted = redis.call('HGET', joining, 'm' .. member)
  local before = noted and string.match(noted, '^%a+')
  if before and (before ~= 'dead' or outcome == 'dead') then return false end
  if fixed_results == '[]' then result = '' end
  local size = tonumber(string.match(result, '^@%d+:(%d+)$')) or #result
  if size > LARGE_RESULT then redis.call('HINCRBY', joining, 'bytes', exact(size)) end
  redis.call('HSET', joining, 'm' .. member, outcome .. ':' .. result)
  if before then redis.call('HINCRBY', joining, before, -1) end
  redis.call('HINCRBY', joining, outcome, 1)
  return true
end

local changed = false
if not (state[4] or state[7]) then
  for i = 3, #ARGV, 3 do changed = note(ARGV[i], ARGV[i + 1], ARGV[i + 2]) or changed end
end
redis.call('PEXPIRE', joining, state[3])
if state[7] and not state[4] then return 'more' end
if not changed or rule == 'tally' then return 'noted' end

local counted = redis.call('HMGET', joining, 'succeeded', 'dead', 'cancelled')
local succeeded, dead = tonumber(counted[1]) or 0, tonumber(counted[2]) or 0
local ended = succeeded + dead + (tonumber(counted[3]) or 0)
local verdict = succeeded == total and 'succeeded' or dead > 0 and 'dead' or 'cancelled'

local is_met = rule == 'complete' and ended == total or rule == 'success' and verdict == 'succeeded'
local is_task, is_passed = is_met or rule == 'dead' and dead > 0, rule == 'pass' and verdict == 'succeeded'
if (is_task or is_passed) and is_large(joining, total) then
  redis.call('HSET', joining, 'gathered', 0)
  return 'more'
end
if is_task then
  local results, outcomes = results_of(joining, total, fixed_results)
  start_join_task(joining, {'results', results, 'outcomes', outcomes}, now)
  return 'fired'
end
if ended < total or rule == 'dead' then return 'noted' end
local result = is_passed and results_of(joining, total, fixed_results) or ''
if verdict ~= 'dead' then redis.call('HSET', joining, 'fired', verdict) end
return post(onward, verdict, result) and 'posted' or 'noted'
