-- What a report on the lease (id, token) is answered: nil when the lease is live, else the reason it is refused;
-- then whether someone waits for the end of the task.
-- The deadline ends a lease, whether or not upkeep has run; only the newest token of a task counts.
local function refusal(id, token, deadline, now, queue)
  local task = redis.pcall('HMGET', tasks .. id, 'id', 'token', 'finished_at', 'queue', 'awaited')
  if task.err or not task[1] or task[3] then return 'gone' end
  if deadline and tonumber(deadline) > now then
    if task[2] == token then return nil, task[5] end
    return 'lost'
  end
  if task[4] ~= queue then return 'lost' end
  return 'not_reserved'
end

-- The lease ends of several tasks in one command: a list beside `ids`, false where a task is not pending.
local function deadlines_of(ids)
  return redis.call('ZMSCORE', pending, unpack(ids))
end

-- Sorts the reports in ARGV from `first` on, `width` words each (id and token lead), into verdicts and the live ones.
-- Returns the verdicts beside the reports (false = live), then of the live ones: the ids, the indexes of their reports
-- in ARGV, and who is awaited.
local function judge(first, width, now, queue)
  local ids = {}
  for i = first, #ARGV, width do ids[#ids + 1] = ARGV[i] end
  local verdicts, live, reports, awaited, seen = {}, {}, {}, {}, {}
  if #ids == 0 then return verdicts, live, reports, awaited end
  local deadlines = deadlines_of(ids)
  for n, id in ipairs(ids) do
    local at = first + (n - 1) * width
    local refused, waited = refusal(id, ARGV[at + 1], deadlines[n], now, queue)
    verdicts[n] = seen[id] and 'gone' or refused or false
    if not verdicts[n] then
      seen[id] = true
      live[#live + 1], reports[#reports + 1], awaited[#awaited + 1] = id, at, waited or false
    end
  end
  return verdicts, live, reports, awaited
end
