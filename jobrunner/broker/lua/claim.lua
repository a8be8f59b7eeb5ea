local batch, batches, closing, settings = unpack(KEYS)
local now_ms, tasks, id, lease_ms = unpack(ARGV)
-- claim: hands a batch out again whose lease ended, or that is due after a failure: same members, next epoch.
-- KEYS  batch: hash · batches, closing: zsets batch id → Unix ms · settings: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id: of the batch · lease_ms: length of the lease
-- reply {} when it is not due, {'gone'} when it cannot be taken (it was halved, is damaged, or much is staged: ask
--       again), else {epoch, state ('open', 'committed'), end of the lease (Unix ms), size, failures, list, first,
--       error, target, ...}
-- Works on a server that is full.
-- include number clock limits held setback

local now = read_clock(now_ms)
local set = redis.call('ZSCORE', closing, id) and closing or batches
local due = redis.call('ZSCORE', set, id)
local read = read_batch()
if not due or tonumber(due) > now then return {} end
if read.state ~= 'committed' and read.state ~= 'open' then
  redis.call('ZREM', set, id)
  return {'gone'}
end
if set == batches and read_defaults(now).paused then return {} end
redis.call('ZREM', set, '')  -- see lib/full.lua

-- Nobody took it for as long as members are held: they are in line again, or are put there. Run once more, a sink would
-- write them twice.
if set == batches and (number(read.hold) or math.huge) <= now then
  decide_without_rows('back', now)
  read, set = read_batch(), closing
end

-- A lease that ended without a report counts, as for a task: a batch may be what kills its drivers.
if set == batches and (number(read.ends) or 0) > 0 then
  if clear_staged() then return {'gone'} end
  local fate = set_back(read, 0, 1, now, now, 'its driver died, hung or was cut off')
  if fate == 'split' then return {'gone'} end
  read = read_batch()
  if fate == 'dead' then set = closing end
end
local epoch, ends = (number(read.epoch) or 0) + 1, exact(now + lease_ms)
redis.call('HSET', batch, 'epoch', epoch, 'ends', ends)
redis.call('ZADD', set, ends, id)
if read.state == 'open' then clear_staged() end
return {epoch, read.state, ends, tonumber(read.size), tonumber(read.failures), read.list, tonumber(read.first),
  read.error or '', unpack(targets_of(read))}
