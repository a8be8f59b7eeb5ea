local first = unpack(KEYS)
local now_ms, unused_ms = unpack(ARGV)
-- queue_forget: deletes the totals of queues that have been unused for long. A queue in use stays.
-- KEYS  first: counters of a queue (hash), then those of further queues
-- ARGV  now_ms: Unix ms or '' · unused_ms: for how long it must have been unused; '' marks it and deletes nothing
-- reply a list, for each key: 'forgotten', 'marked' (from now on it counts as unused), 'early' (marked not long ago)
--       or 'used' (it holds something, is configured, or has no totals to delete)
-- The other keys of a queue are named by its counters, so on a cluster all of them must be of one slot.
-- include numbers queue_scan

local now = read_clock(now_ms)

local function forget_queue(counters)
  local prefix = string.sub(counters, 1, -9)
  local total, _, since, marked, is_new = read_totals(counters)
  if not total or is_new or holds_anything(prefix) then return 'used' end
  local is_kept = unused_ms ~= '' and is_configured(prefix)
  if marked ~= total or since > now or is_kept then
    redis.call('HSET', counters, 'unused', exact(math.floor(now)) .. ' ' .. exact(total))
    return is_kept and 'used' or 'marked'
  end
  if unused_ms == '' or since + tonumber(unused_ms) > now then return 'early' end
  unlink_queue_keys(prefix)
  return 'forgotten'
end

local replies = {}
if not first then return replies end
for n, key in ipairs(KEYS) do replies[n] = forget_queue(key) end
return replies
