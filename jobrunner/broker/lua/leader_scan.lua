local first = unpack(KEYS)
local now_ms, unused_ms = unpack(ARGV)
-- leader_scan: whether the leader has anything to do, in one call for many queues. Changes nothing.
-- KEYS  first: counters of a queue (hash) or the workers (zset worker id → Unix ms), then further ones
-- ARGV  now_ms: Unix ms or '' · unused_ms: after how long an unused queue is forgotten, 0 = never
-- reply a list, for each key: the sum of its totals for a queue without anything to do, else
--       {1 when the outbox of its tag holds anything, 1 when batches of it are finishing, how many tasks of it died: ''
--       for none, nil for damage; the sum; when it needs maintenance, Unix ms or '';
--       0: it holds nothing, 1: something, 2: tasks in progress; 'unmarked' or 'unused': see queue_forget.lua};
--       {id, ...}: the workers whose heartbeats stopped
-- The other keys of a queue are named by its counters, and those of workers by their set, so on a cluster all that are
-- given must be of one slot: the driver divides the call.
-- include numbers history queue_scan
local MOST_WORKERS = 1000 -- those with the oldest heartbeats: a silent one becomes one of them

local now = read_clock(now_ms)

local function silent_workers(workers)
  local found, worker = {}, string.sub(workers, 1, -2) .. ':'
  for _, id in ipairs(redis.call('ZRANGE', workers, 0, MOST_WORKERS - 1)) do
    if redis.call('EXISTS', worker .. id) == 0 then found[#found + 1] = id end
  end
  return found
end

local function scan_queue(counters)
  local of_tag, prefix = string.match(counters, '^.-}:'), string.sub(counters, 1, -9)
  local total, dead, marked_at, marked, is_new = read_totals(counters)
  local posted, finishing = redis.call('EXISTS', of_tag .. 'outbox'), prefix .. 'finishing'
  local holds = redis.call('EXISTS', prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'pending', prefix .. 'dead',
    prefix .. 'done', prefix .. 'batches', finishing)
  if holds == 0 then
    local unused = ''
    if total and not is_new and unused_ms ~= '0' and posted == 0 then
      unused = (marked ~= total or marked_at > now) and 'unmarked'
        or marked_at + tonumber(unused_ms) <= now and 'unused' or ''
    end
    if posted == 0 and dead == '' and unused == '' then return total end
    return {posted, 0, dead or false, total or 0, '', 0, unused}
  end
  local is_finishing = redis.call('EXISTS', finishing)
  local is_in_work = is_finishing == 1 or redis.call('EXISTS', prefix .. 'pending') == 1
  return {posted, is_finishing, dead or false, total or 0, maintenance_due(prefix, now), is_in_work and 2 or 1, ''}
end

local replies = {}
if not first then return replies end
for n, key in ipairs(KEYS) do
  replies[n] = (string.sub(key, -9) == ':counters' and scan_queue or silent_workers)(key)
end
return replies
