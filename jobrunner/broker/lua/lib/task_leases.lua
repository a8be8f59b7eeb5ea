-- A lease has an end, in `pending`, and a number, in `leases`. The end decides, whether or not maintenance has run; of
-- two workers that hold the same task, only the worker with the newest number may report.

-- Returns the score of each id, as text; false where an id is not in the set.
local function scores_of(set, ids)
  if #ids == 0 then return {} end
  if #ids <= 4000 then return redis.call('ZMSCORE', set, unpack(ids)) end
  local scores = {}
  for n, id in ipairs(ids) do scores[n] = redis.call('ZSCORE', set, id) end
  return scores
end

local function has_ended(id, now)
  local lease_end = redis.call('ZSCORE', pending, id)
  return not lease_end or tonumber(lease_end) <= now
end

-- Returns the reason for which a report is refused.
local function reason_of(id, now, queue)
  if not has_ended(id, now) then return 'lost' end
  local task = redis.pcall('HMGET', tasks .. id, 'id', 'queue')
  if task.err or not task[1] or is_finished(tasks .. id) then return 'gone' end
  return task[2] == queue and 'not_reserved' or 'lost'
end

-- Checks reports, passed as parallel lists of ids and lease numbers. Returns a parallel list with the reason of each
-- refusal, nil for a valid report, and the positions of the valid reports. Numbers are compared as text first, which is
-- fast; a different notation of the same number is compared as a number.
local function check_leases(ids, numbers, now, queue)
  local newest = scores_of(leases, ids)
  local some_ended = redis.call('ZCOUNT', pending, '-inf', exact(now)) > 0
  local refused, live, count, seen = {}, {}, 0, {}
  for n = 1, #ids do
    local id, newest_number = ids[n], newest[n]
    if seen[id] then
      refused[n] = 'gone'
    elseif not newest_number or newest_number ~= numbers[n] and tonumber(newest_number) ~= tonumber(numbers[n])
      or some_ended and has_ended(id, now) then
      refused[n] = reason_of(id, now, queue)
    else
      count = count + 1
      live[count], seen[id] = n, true
    end
  end
  return refused, live
end

-- Reads the reports from `first` on in ARGV, `width` arguments each, as lists: ids, lease numbers, and start positions.
local function read_reports(first, width)
  local ids, numbers, starts = {}, {}, {}
  for at = first, #ARGV, width do
    local n = #ids + 1
    ids[n], numbers[n], starts[n] = ARGV[at], ARGV[at + 1], at
  end
  return ids, numbers, starts
end

local function at_positions(ids, positions)
  if #positions == #ids then return ids end
  local found = {}
  for n, position in ipairs(positions) do found[n] = ids[position] end
  return found
end

-- Subtracts ended leases from the counts of their partitions; the next reserve checks a partition that was blocked by
-- them. Every script that removes a task from `pending` calls this. `holders` has the partition of each task that was
-- handed out under a limit of its partition, `inflight` the number of these tasks for each partition.
local function free_some_partitions(prefix, ids)
  local left, changed, gone, blocked, at = {}, {}, {}, {}, 0
  for _, partition in ipairs(redis.call('HMGET', prefix .. 'holders', unpack(ids))) do
    if partition then
      left[partition] = (left[partition] or tonumber(redis.call('HGET', prefix .. 'inflight', partition)) or 0) - 1
    end
  end
  for partition, count in pairs(left) do
    if count > 0 then
      changed[#changed + 1], changed[#changed + 2] = partition, count
    else
      gone[#gone + 1] = partition
    end
    blocked[at + 1], blocked[at + 2], at = 0, partition, at + 2
  end
  if #changed > 0 then redis.call('HSET', prefix .. 'inflight', unpack(changed)) end
  if #gone > 0 then redis.call('HDEL', prefix .. 'inflight', unpack(gone)) end
  if at > 0 then redis.call('ZADD', prefix .. 'blocked', 'XX', unpack(blocked)) end
  redis.call('HDEL', prefix .. 'holders', unpack(ids))
end

local function free_partitions(ids)
  local prefix = string.sub(pending, 1, -8)
  if #ids == 0 or redis.call('EXISTS', prefix .. 'holders') == 0 then return end
  for first = 1, #ids, 1000 do
    free_some_partitions(prefix, {unpack(ids, first, math.min(first + 999, #ids))})
  end
end

-- Ends the leases of the tasks at the `live` positions: the last step of a report. `is_limited` is false when the
-- caller knows that no partition of the queue has a limit.
local function end_leases(ids, live, is_limited)
  local ended = at_positions(ids, live)
  call_sliced('ZREM', pending, ended)
  call_sliced('ZREM', leases, ended)
  if is_limited ~= false then free_partitions(ended) end
end

-- Drops a task under a lease whose hash cannot be read, and its lease, which would else count until it ends.
local function drop_leased(id)
  drop_damaged(id)
  end_leases({id}, {1})
  notify_worker_if_limited(wake)
  return 'gone'
end
