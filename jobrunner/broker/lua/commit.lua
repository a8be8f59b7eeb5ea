local pending, done, leases, settings, counters, awaited, wake, outbox = unpack(KEYS)
local now_ms, tasks, queue, finished = unpack(ARGV, 1, 4)
-- commit: pending → finished; the hash is deleted, or kept for a while with the result, or as history.
-- KEYS  pending, done, leases: zsets · settings, counters: hashes · awaited, wake: zsets · outbox: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the
--       channels that tell waiters · then groups of reports that say the same: count, keep_ms (0 = delete), outcome
--       ('succeeded', 'cancelled', 'dropped'), result, onward ('' = of no flow; else the task's field `then`), type
--       ('' = none, or not known), and for each report id, number of its lease
-- reply of the refused reports: position (1 = first), 'gone', 'not_reserved' or 'lost' (nothing changed), ...
-- Works on a server that is full.
-- include number clock batch full lease awaited trimmed history wake capped post ending typed

local now = read_clock(now_ms)
local ended = exact(now)

local ids, numbers, groups, reports, is_of_flow = {}, {}, {}, 0, false
local at = 5
while ARGV[at] do
  local behind = at + 6 + 2 * ARGV[at]
  for i = at + 6, behind - 1, 2 do
    reports = reports + 1
    ids[reports], numbers[reports], groups[reports] = ARGV[i], ARGV[i + 1], at
  end
  if ARGV[at + 4] ~= '' then is_of_flow = true end
  at = behind
end
local refused, live = judge(ids, numbers, now, queue)

-- A station that drops an item cancels it, as others see it; only the count tells the two apart.
local function shown(outcome) return outcome == 'dropped' and 'cancelled' or outcome end

if #live > 0 then write_even_when_full() end
local someone_waits, history = redis.call('EXISTS', awaited) == 1, read_history()
local doomed, kept, totals, sizes = {}, {}, {}, {}
for _, n in ipairs(live) do
  local id, group = ids[n], groups[n]
  local keep_ms, outcome, result = keep_for(ARGV[group + 1], history), ARGV[group + 2], ARGV[group + 3]
  kept[#kept + 1] = id
  if end_one(id, keep_ms, shown(outcome), result, ended, someone_waits) then doomed[#doomed + 1] = tasks .. id end
  totals[outcome], sizes[group] = (totals[outcome] or 0) + 1, (sizes[group] or 0) + 1
end
unlink(doomed)
if is_of_flow then
  for _, n in ipairs(live) do post(ARGV[groups[n] + 4], shown(ARGV[groups[n] + 2]), ARGV[groups[n] + 3]) end
end
if history then note_done(kept, now, history) end
for outcome, total in pairs(totals) do redis.call('HINCRBY', counters, outcome, total) end
local by_type = {}
for group, size in pairs(sizes) do
  local type, outcome = ARGV[group + 5], ARGV[group + 2]
  by_type[outcome] = by_type[outcome] or {}
  by_type[outcome][type] = (by_type[outcome][type] or 0) + size
end
for outcome, of in pairs(by_type) do
  for type, size in pairs(of) do count_typed(type, outcome, size) end
end
end_leases(ids, live)
wake_if_capped(wake)

local reply = {}
for n, reason in pairs(refused) do reply[#reply + 1], reply[#reply + 2] = n, reason end
return reply
