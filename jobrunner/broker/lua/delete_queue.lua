local waiting, scheduled, pending, dead, done, leases, counters, outbox = unpack(KEYS)
local now_ms, tasks, force, count = unpack(ARGV, 1, 4)
-- delete_queue: deletes a queue that holds nothing, with settings and totals; by force a slice of what it holds first.
-- KEYS  waiting, scheduled, pending, dead, done, leases: zsets · counters, outbox: hashes
-- ARGV  now_ms: unused · tasks: prefix of the task hashes · force: '1' deletes what it holds · count: at most so many
--       tasks · then keys of the states of its periodic jobs
-- reply {'deleted'}; {'held', waiting, scheduled, pending, dead, done, batches}: these keep it, nothing changed;
--       {'decided'}: a batch of it is decided and must be rolled forward first; {'posted'}: its outbox must be
--       delivered first; {'more', how many tasks were deleted}
-- A task is deleted with its position, lease and lock: its worker's report is 'lost', and its joins see it cancelled.
-- include task_end queue_scan

local prefix, tag_prefix, NONCES = string.sub(counters, 1, -9), string.match(counters, '^.-}:'), 500

local function delete_tasks(set)
  local ids, left = redis.call('ZRANGE', set, 0, tonumber(count) - 1), {}
  for _, id in ipairs(ids) do
    local key = tasks .. id
    if set ~= done or read_record(done, id) then left[#left + 1] = key end
    local task = set ~= done and redis.pcall('HMGET', key, 'then', 'finished_at', 'died_at', 'lock')
    if task and not task.err then
      if not (task[2] or task[3]) then post(task[1], 'cancelled', '') end
      drop_lock(id, task[4])
    end
  end
  if #ids == 0 then return 0 end
  if left[1] then redis.call('UNLINK', unpack(left)) end
  for _, index in ipairs({leases, set}) do redis.call('ZREM', index, unpack(ids)) end
  redis.call('HINCRBY', counters, set == done and 'history_purged' or 'purged', #ids)
  return #ids
end

local function has_decided()
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'finishing', 0, -1)) do
    local batch = redis.call('HMGET', tag_prefix .. 'batch:' .. id, 'state', 'size')
    if batch[1] == 'committed' and batch[2] ~= '0' then return true end  -- a write adds to this queue alone
  end
end

local function delete_batch() -- of no members: parts that are left share a list that none of them needs any more
  local id = redis.call('ZRANGE', prefix .. 'batches', 0, 0)[1] or redis.call('ZRANGE', prefix .. 'finishing', 0, 0)[1]
  local batch = tag_prefix .. 'batch:' .. id
  local nonces = redis.call('SPOP', batch .. ':nonces', NONCES)
  for _, nonce in ipairs(nonces) do redis.call('UNLINK', batch .. ':rows:' .. nonce) end
  if #nonces == NONCES then return end
  local root = tag_prefix .. 'batch:' .. (redis.call('HGET', batch, 'list') or id)
  redis.call('UNLINK', batch, batch .. ':manifest', root, root .. ':members')
  for _, index in ipairs({'batches', 'finishing'}) do redis.call('ZREM', prefix .. index, id) end
end

local function delete_some() -- batches after all members: a deletion that is broken off leaves none without its batch
  if has_decided() then return {'decided'} end
  for _, set in ipairs({pending, waiting, scheduled, dead, done}) do
    local gone = delete_tasks(set)
    if gone > 0 then return {'more', gone} end
  end
  delete_batch()
  return {'more', 0}
end

local holds, total = {'held'}, 0
for n, set in ipairs({waiting, scheduled, pending, dead, done}) do holds[n + 1] = redis.call('ZCARD', set) end
holds[7] = redis.call('ZCARD', prefix .. 'batches') + redis.call('ZCARD', prefix .. 'finishing')
for n = 2, 7 do total = total + holds[n] end
if total > 0 then return force == '1' and delete_some() or holds end
if redis.call('EXISTS', outbox) == 1 then return {'posted'} end
if unlink_partitions(prefix) then return {'more', 0} end
unlink_queue_keys(prefix)
for n = 5, #ARGV do redis.call('UNLINK', ARGV[n]) end
return {'deleted'}
