local waiting, pending, leases, counters, wake, batches, finishing, batch = unpack(KEYS)
local now_ms, tasks, id, known, after, count = unpack(ARGV)
-- batch_reclaim: pending → waiting, items whose lease has the number of a batch that is not open, so that no driver
--       would ever end them. Versions that topped up halves of a batch left such items for a week.
-- KEYS  waiting, pending, leases: zsets · counters: hash · wake: zset · batches, finishing: zsets batch id → Unix ms ·
--       batch: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id: of a batch whose items to find, or '' ·
--       known: number of its leases, or '' for all numbers · after: number behind which to go on · count: at most so
--       many items
-- reply {how many items went back to the queue, number to go on behind ('' at the end), 1 when a batch uses the list
--       of members of `id`, or may use it}
-- A number counts as a batch's when two items share it: each lease of a program has a number of its own.
-- Works on a server that is full.
-- include numbers commands queue_position waiting_set task_end task_leases batch
-- rarely add_to_partitions

local FIRST_OF_WORKERS = '2251799813685248'  -- numbers from here on are those of workers' leases, see attempt.py
local LOOKED_AT = 200
local MOST_OPEN = 5000  -- hashes of batches to read, about a microsecond each

local open, lists = nil, {}

-- Whether an open batch has this number; also when there are too many batches to read.
local function is_open(lease)
  if open == nil then
    open = redis.call('ZCARD', batches) + redis.call('ZCARD', finishing) <= MOST_OPEN and {}
    for _, set in ipairs(open and {batches, finishing} or {}) do
      for _, other in ipairs(redis.call('ZRANGE', set, 0, -1)) do
        local read = redis.pcall('HMGET', batch_key(other), 'number', 'list')
        if not read.err then open[tonumber(read[1]) or ''], lists[read[2] or ''] = true, true end
      end
    end
  end
  return not open or open[tonumber(lease)]
end

-- Returns up to `most` items to the queue whose lease has this number. One more rather than leave a single one, which
-- would look like the lease of a program.
local function return_some(lease, most)
  local ids = redis.call('ZRANGEBYSCORE', leases, lease, lease, 'LIMIT', 0, most + 2)
  if #ids == most + 2 then ids = {unpack(ids, 1, most)} end
  local lease_ends, back = scores_of(pending, ids), {}
  for n, one in ipairs(ids) do
    if lease_ends[n] then back[#back + 1] = one end
  end
  write_even_when_full()
  return_to_queue(back, read_clock(now_ms))
  call_sliced('ZREM', pending, ids)
  free_partitions(ids)
  call_sliced('ZREM', leases, ids)
  return #ids
end

count = tonumber(count)
if known ~= '' then
  local back = is_open(known) and 0 or return_some(known, count)
  return {back, back >= count and known or '', (not open or lists[id]) and 1 or 0}
end

local at, back = after, 0
for _ = 1, LOOKED_AT do
  local found = redis.call('ZRANGEBYSCORE', leases, '(' .. at, '(' .. FIRST_OF_WORKERS, 'WITHSCORES', 'LIMIT', 0, 2)
  if not found[1] then return {back, '', 0} end
  if found[4] == found[2] and not is_open(found[2]) then
    back = back + return_some(found[2], count - back)
    if back >= count then return {back, at, 0} end
  end
  at = found[2]
end
return {back, at, 0}
