local pending, done, leases, settings, counters, waiters, wake, outbox = unpack(KEYS)
local now_ms, tasks, queue, finished = unpack(ARGV, 1, 4)
-- commit: pending → finished; the hash is deleted, or kept for a while with the result, or as history.
-- KEYS  pending, done, leases: zsets · settings, counters: hashes · waiters, wake: zsets · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the
--       channels that notify waiters · then groups of reports that say the same: count, keep_ms (0 = delete), outcome
--       ('succeeded', 'cancelled', 'dropped'), result, onward ('' = of no flow; else the task's field `then`), type
--       ('' = none, or not known), runs ('' = not known; else the ms that each ran, -1 = not known, spaces between),
--       and for each report id, number of its lease
-- reply of the refused reports: position (1 = first), 'gone', 'not_reserved' or 'lost' (nothing changed), ...
-- Works on a server that is full. An end wakes a worker where a limit may have kept it from the next task.
-- include numbers commands task_end history task_leases
-- rarely has_ended reason_of notify_waiters post history_of ttl_for add_to_history notify_worker
-- rarely free_partitions

local now = read_clock(now_ms)
local ended = exact(now)

local ids, numbers, ran, groups, reports, at = {}, {}, {}, {}, 0, 5
while ARGV[at] do
  local behind = at + 7 + 2 * ARGV[at]
  if ARGV[at + 6] ~= '' then read_runs(ARGV[at + 6], ran, reports) end
  for i = at + 7, behind - 1, 2 do
    reports = reports + 1
    ids[reports], numbers[reports] = ARGV[i], ARGV[i + 1]
  end
  groups[#groups + 1], groups[#groups + 2] = at, reports
  at = behind
end
local refused, live = check_leases(ids, numbers, now, queue)
if #live > 0 then write_even_when_full() end
local has_waiters = redis.call('EXISTS', waiters) == 1
local set = redis.call('HMGET', settings, 'history_ms', 'history_max', 'max_inflight', 'key_inflight')
local history = (set[1] or set[2]) and history_of(set[1], set[2])
local doomed, totals, by_type, seen = {}, {}, {}, 0

-- Ends the live tasks of a group, from the first task not seen yet to the group's `last`.
local function end_group(last, keep_ms, outcome, result, onward, type)
  -- An item that a station drops appears as cancelled; only the totals distinguish the two.
  local first, shown = seen, outcome == 'dropped' and 'cancelled' or outcome
  local own_keep = own_keep_ms(keep_ms, type, history)
  local is_usual = not own_keep and is_usual_end(keep_ms, shown, result, history)
  if history then keep_ms = ttl_for(keep_ms, history) end
  while seen < #live and live[seen + 1] <= last do
    seen = seen + 1
    local id = ids[live[seen]]
    local run = history and ran[live[seen]]
    local is_doomed = end_task(id, keep_ms, shown, result, ended, has_waiters, is_usual, run, own_keep)
    if is_doomed then doomed[#doomed + 1] = tasks .. id end
    if onward ~= '' then post(onward, shown, result) end
  end
  local size = seen - first
  if size == 0 then return end
  by_type[outcome] = by_type[outcome] or {}
  totals[outcome], by_type[outcome][type] = (totals[outcome] or 0) + size, (by_type[outcome][type] or 0) + size
end

for n = 1, #groups, 2 do end_group(groups[n + 1], unpack(ARGV, groups[n] + 1, groups[n] + 5)) end
if #doomed > 0 then unlink(doomed) end
if history then add_to_history(at_positions(ids, live), now, history) end
for outcome, total in pairs(totals) do
  redis.call('HINCRBY', counters, outcome, total)
  for type, size in pairs(by_type[outcome]) do count_typed(type, outcome, size) end
end
end_leases(ids, live, set[4] or false)
if set[3] or set[4] then notify_worker(wake) end

local reply = {}
for n, reason in pairs(refused) do reply[#reply + 1], reply[#reply + 2] = n, reason end
return reply
