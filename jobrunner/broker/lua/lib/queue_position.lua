-- A task's place in its queue is one double: priority decides first, then due time, then arrival.
--   place = (1 - priority) * 2^42 + due,  due in Unix ms with 1/1024 ms as the finest step.
-- It is exact (43 bits before the point, 10 behind) until the year 2109, and for the default priority simply the due
-- time. The first half of a millisecond is for tasks that were scheduled for it, the second for those that arrive in
-- it. Equal places are ordered by id, and ids that jobrunner makes sort in the order they were made.
local STEP = 1 / 1024
local HALF = 1 / 2
local BAND = 4398046511104
-- Scores above all places and all times, for tasks in partitions; UNPARTITIONED separates the two kinds.
local PARTITIONED = 70368744177664
local FAR = 70368744177664
local UNPARTITIONED = 35184372088832

local function place_of(priority, due)
  if priority == '' then return due end
  return (1 - math.max(0, math.min(number(priority) or 1, 2))) * BAND + due
end

-- The arrival after `last`: a logical clock that follows the server's clock and never goes back.
local function arrival_after(last, now)
  local first, after = now - now % 1 + HALF, last + STEP
  return after < first and first or after
end

-- The due time nearest to `due` after all tasks that are scheduled for the same millisecond.
local function slot_at(scheduled, due)
  due = math.ceil(due)
  local last = redis.call('ZREVRANGEBYSCORE', scheduled, '(' .. exact(due + HALF), exact(due), 'WITHSCORES', 'LIMIT',
    0, 1)
  if not last[2] then return due end
  return math.min(tonumber(last[2]) + STEP, due + HALF - STEP)
end

-- The last due time that counts as due at `now`.
local function last_slot_at(now)
  return math.max(now, math.floor(now) + HALF - STEP)
end
