local waiting, scheduled, pending, dead, settings, counters = unpack(KEYS)
local now_ms, tasks, queue, finished = unpack(ARGV, 1, 4)
-- commit: pending → finished; the hash is deleted, or kept for a while with the result.
-- KEYS  waiting, scheduled, pending, dead: zsets · settings, counters: hashes
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name · finished: prefix of the
--       channels that tell waiters · then for each report: id, token, keep_ms (0 = delete), outcome, result
-- reply list beside the reports: 'ok', 'gone', 'not_reserved' or 'lost'; all but 'ok' changed nothing
-- Frees first, so it works on a server that is full.
-- include clock batch lease

local now = read_clock(now_ms)
local ended = exact(now)
local verdicts, live, reports, awaited = judge(5, 5, now, queue)
if #live > 0 then call_sliced('ZREM', pending, live) end

local function keep(key, keep_ms, outcome, result)
  redis.call('PEXPIRE', key, keep_ms)
  redis.call('HSET', key, 'outcome', outcome, 'result', result, 'finished_at', ended)
end

local doomed, totals = {}, {}
for n, at in ipairs(reports) do
  local key, keep_ms, outcome = tasks .. live[n], ARGV[at + 2], ARGV[at + 3]
  if awaited[n] then
    if keep_ms == '0' then keep_ms = '5000' end
    redis.call('PUBLISH', finished .. live[n], outcome)
  end
  if keep_ms == '0' then doomed[#doomed + 1] = key else keep(key, keep_ms, outcome, ARGV[at + 4]) end
  totals[outcome] = (totals[outcome] or 0) + 1
end
for first = 1, #doomed, 4000 do
  redis.call('UNLINK', unpack(doomed, first, math.min(first + 3999, #doomed)))
end
for outcome, total in pairs(totals) do redis.call('HINCRBY', counters, outcome, total) end
for n = 1, #verdicts do verdicts[n] = verdicts[n] or 'ok' end
return verdicts
