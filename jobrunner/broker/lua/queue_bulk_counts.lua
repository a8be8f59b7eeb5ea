local first = unpack(KEYS)
local now_ms = unpack(ARGV)
-- queue_bulk_counts: the counts of many queues in one call. Changes nothing.
-- KEYS  first: settings of a queue (hash), then those of further queues
-- ARGV  now_ms: Unix ms or ''
-- reply a list, for each key: an error's text, or {waiting, scheduled, pending, dead, done, paused: the field or '',
--       oldest: when the task was due that has waited longest, Unix ms or '',
--       limits: {max_inflight, max_size, max_tokens, interval_us, interval, interval_unit: the fields or nil},
--       counter, total, counter, total, ...}
-- Tasks that are due and those with expired leases count as waiting, although maintenance has not moved them yet.
-- The other keys of a queue are named by its settings, so on a cluster all of them must be of one slot: the
-- driver divides the call.
-- include numbers queue_position

local now = read_clock(now_ms)
local due_now = exact(last_slot_at(now))
local problem

-- Returns the reply of a command; nil or false for none, or for an error, which is noted in `problem`.
local function try(...)
  local reply = redis.pcall(...)
  if not reply or tonumber(reply) or not reply.err then return reply end
  problem = problem or reply.err
end

-- The due time of the task that has waited longest. One whose lease ended waits since then.
local function oldest_of(waiting, scheduled, pending)
  local oldest
  local function look(set, from, to, start)
    local head = try('ZRANGEBYSCORE', set, from, to, 'WITHSCORES', 'LIMIT', 0, 1)
    local due = head and head[2] and tonumber(head[2]) - start
    if due and (not oldest or due < oldest) then oldest = due end
  end
  look(scheduled, '-inf', due_now, 0)
  look(pending, '-inf', exact(now), 0)
  for priority = 0, 2 do
    local from = (1 - priority) * BAND
    for _, start in ipairs({from, PARTITIONED + from}) do
      look(waiting, exact(start), '(' .. exact(start + BAND), start)
    end
  end
  return oldest and exact(oldest) or ''
end

local function counts_of(prefix)
  local waiting, scheduled, pending, dead, done =
    prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'pending', prefix .. 'dead', prefix .. 'done'
  if redis.call('EXISTS', waiting, scheduled, pending, dead, done) == 0 then return {0, 0, 0, 0, 0, '', ''} end
  local due = try('ZCOUNT', scheduled, '-inf', due_now) or 0
  local ended = try('ZCOUNT', pending, '-inf', exact(now)) or 0
  local waits = (try('ZCARD', waiting) or 0) + due + ended
  return {waits, (try('ZCARD', scheduled) or 0) - due, (try('ZCARD', pending) or 0) - ended,
    try('ZCARD', dead) or 0, try('ZCARD', done) or 0, '', waits > 0 and oldest_of(waiting, scheduled, pending) or ''}
end

local function summary_of(prefix)
  problem = nil
  local reply = counts_of(prefix)
  local set = try('HMGET', prefix .. 'settings', 'paused', 'max_inflight', 'max_size', 'max_tokens', 'interval_us',
    'interval', 'interval_unit') or {}
  reply[6] = table.remove(set, 1) or ''
  reply[8] = set
  for _, word in ipairs(try('HGETALL', prefix .. 'counters') or {}) do reply[#reply + 1] = word end
  return problem or reply
end

local replies = {}
if not first then return replies end
for n, settings in ipairs(KEYS) do replies[n] = summary_of(string.sub(settings, 1, -9)) end
return replies
