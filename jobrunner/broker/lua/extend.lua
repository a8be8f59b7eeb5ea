local pending = unpack(KEYS)
local now_ms, tasks, queue = unpack(ARGV, 1, 3)
-- extend: pending stays pending; the lease ends keepalive from now, never earlier than it did.
-- KEYS  pending: zset
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · queue: full name
--       then for each report: id, token, keepalive_ms
-- reply list beside the reports: the new lease end (Unix ms), with '!' in front when the task was asked to stop,
--       or 'gone', 'not_reserved', 'lost' (nothing changed)
-- include clock batch lease

local now = read_clock(now_ms)
local verdicts, live, reports = judge(4, 3, now, queue)
local leases = {}
for n, at in ipairs(reports) do
  local ends = math.max(tonumber(redis.call('ZSCORE', pending, live[n])), now + tonumber(ARGV[at + 2]))
  leases[#leases + 1], leases[#leases + 2] = exact(ends), live[n]
  local stop = redis.call('HEXISTS', tasks .. live[n], 'cancel_requested') == 1
  verdicts[(at - 4) / 3 + 1] = (stop and '!' or '') .. exact(ends)
end
if #leases > 0 then call_sliced('ZADD', pending, leases) end
return verdicts
