-- A lease is its end, in `pending`, and its number, in `leases`. The end decides, whether or not upkeep has run; of two
-- who hold a task for theirs, only the one with the newest number is believed.

-- Scores beside ids, as text; false where an id is not in the set.
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

-- Why a report is refused that was not made by the holder of a lease.
local function reason_of(id, now, queue)
  if not has_ended(id, now) then return 'lost' end
  local task = redis.pcall('HMGET', tasks .. id, 'id', 'queue')
  if task.err or not task[1] or is_over(tasks .. id) then return 'gone' end
  return task[2] == queue and 'not_reserved' or 'lost'
end

-- Judges reports, given as ids and beside them the numbers of the leases they were made under. Returns beside them why
-- each is refused, nil for those that are not, and the positions of these. Numbers are compared as text, which is fast
-- and the same but for notation.
local function judge(ids, numbers, now, queue)
  local newest = scores_of(leases, ids)
  local some_ended = redis.call('ZCOUNT', pending, '-inf', exact(now)) > 0
  local refused, live, count, seen = {}, {}, 0, {}
  for n = 1, #ids do
    local id, held = ids[n], newest[n]
    if seen[id] then
      refused[n] = 'gone'
    elseif not held or held ~= numbers[n] and tonumber(held) ~= tonumber(numbers[n])
      or some_ended and has_ended(id, now) then
      refused[n] = reason_of(id, now, queue)
    else
      count = count + 1
      live[count], seen[id] = n, true
    end
  end
  return refused, live
end

-- The reports from `first` on in ARGV, `width` words each, as lists: ids, numbers of leases, and where each begins.
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

-- Tasks whose lease is over give their key room again: a key that waited for that is looked at by the next hand-out.
-- Whoever takes a task out of `pending` says so here. `holders` has the key of each task that was handed out under a
-- limit of its key, `inflight` how many of them a key has.
local function free_some(own, ids)
  local left, changed, gone, blocked, at = {}, {}, {}, {}, 0
  for _, key in ipairs(redis.call('HMGET', own .. 'holders', unpack(ids))) do
    if key then
      left[key] = (left[key] or tonumber(redis.call('HGET', own .. 'inflight', key)) or 0) - 1
    end
  end
  for key, count in pairs(left) do
    if count > 0 then
      changed[#changed + 1], changed[#changed + 2] = key, count
    else
      gone[#gone + 1] = key
    end
    blocked[at + 1], blocked[at + 2], at = 0, key, at + 2
  end
  if #changed > 0 then redis.call('HSET', own .. 'inflight', unpack(changed)) end
  if #gone > 0 then redis.call('HDEL', own .. 'inflight', unpack(gone)) end
  if at > 0 then redis.call('ZADD', own .. 'blocked', 'XX', unpack(blocked)) end
  redis.call('HDEL', own .. 'holders', unpack(ids))
end

local function free_keys(ids)
  local own = string.sub(pending, 1, -8)
  if #ids == 0 or redis.call('EXISTS', own .. 'holders') == 0 then return end
  for first = 1, #ids, 1000 do
    free_some(own, {unpack(ids, first, math.min(first + 999, #ids))})
  end
end

-- Takes the tasks at the `live` positions out of their leases: the last step of a report. `is_limited` is false where
-- the caller knows that no key of the queue has a limit.
local function end_leases(ids, live, is_limited)
  local over = at_positions(ids, live)
  call_sliced('ZREM', pending, over)
  call_sliced('ZREM', leases, over)
  if is_limited ~= false then free_keys(over) end
end
