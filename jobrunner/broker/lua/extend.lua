local pending, leases = unpack(KEYS)
local now_ms, tasks, queue = unpack(ARGV, 1, 3)
-- extend: pending stays pending; the lease ends keepalive from now, never earlier than it did.
-- KEYS  pending, leases: zsets
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name
--       then for each report: id, number of its lease, keepalive_ms
-- reply a list, for each report: the new lease end (Unix ms), with '!' in front when the task was asked to stop,
--       or 'gone', 'not_reserved', 'lost' (nothing changed)
-- Works on a server that is full.
-- include numbers commands task_end task_leases
-- rarely has_ended reason_of

local now = read_clock(now_ms)
local ids, numbers, starts = read_reports(4, 3)
local verdicts, live = check_leases(ids, numbers, now, queue)
local ends = scores_of(pending, ids)

local renewed = {}
for _, n in ipairs(live) do
  local lease_end = math.max(tonumber(ends[n]) or 0, now + ARGV[starts[n] + 2])
  renewed[#renewed + 1], renewed[#renewed + 2] = lease_end, ids[n]
  local stop = redis.pcall('HGET', tasks .. ids[n], 'cancel_requested')
  verdicts[n] = (stop == '1' and '!' or '') .. exact(lease_end)
end
if #live > 0 then
  write_even_when_full()
  call_sliced('ZADD', pending, renewed)
end
return verdicts
