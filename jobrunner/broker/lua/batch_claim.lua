local batch, batches, finishing, settings = unpack(KEYS)
local now_ms, tasks, id, lease_ms, claim = unpack(ARGV)
-- batch_claim: hands out a batch again whose lease ended, or that is due after a failure: same members, next epoch.
-- KEYS  batch: hash · batches, finishing: zsets batch id → Unix ms · settings: hash
-- ARGV  now_ms: Unix ms or '' · tasks: prefix of the task hashes · id: of the batch · lease_ms: length of the lease ·
--       claim: a name of this call alone, which `batch_renew` compares; '' for none
-- reply {} when it is not due, {'gone'} when it cannot be taken (it was split, is damaged, or much is staged: ask
--       again), else {epoch, state ('open', 'committed'), end of the lease (Unix ms), size, failures, list, first,
--       error, 1 when another part of its root was decided, rest ('' while it is open; see lib/batch_apply.lua),
--       target, ...}
--       Sent again under its name while its lease lasts it changes nothing: the same reply.
-- Works on a server that is full.
-- include numbers queue_settings batch

local now = read_clock(now_ms)
local set = redis.call('ZSCORE', finishing, id) and finishing or batches
local due = redis.call('ZSCORE', set, id)
local read = read_batch()

local function handed_out(epoch, ends)
  return {epoch, read.state, ends, tonumber(read.size), tonumber(read.failures), read.list, tonumber(read.first),
    read.error or '', redis.call('HEXISTS', batch_key(read.list or id), 'worked'), read.rest or '',
    unpack(batch_targets(read))}
end

if claim ~= '' and read.claim == claim and is_leased_as(read, read.epoch, now) then
  return handed_out(tonumber(read.epoch), read.ends)
end
if not due or tonumber(due) > now then return {} end
if read.state ~= 'committed' and read.state ~= 'open' then
  redis.call('ZREM', set, id)
  return {'gone'}
end
if set == batches and read_config(now).paused then return {} end
redis.call('ZREM', set, '')  -- see lib/commands.lua

-- No driver took the batch before the leases of its members expired: the members are back in the queue, or return to it
-- now. Running the batch again would make a sink write them twice.
if set == batches and (number(read.hold) or math.huge) <= now then
  decide_without_rows('back', now)
  read, set = read_batch(), finishing
end

-- An expired lease counts as an attempt, as for a task: the batch may be the cause that kills its drivers.
if set == batches and (number(read.ends) or 0) > 0 then
  if clear_staged() then return {'gone'} end
  local fate = count_failure(read, 0, 1, now, now, 'its driver died, hung or was cut off')
  if fate == 'split' then return {'gone'} end
  read = read_batch()
  if fate == 'dead' then set = finishing end
end
local epoch, ends = (number(read.epoch) or 0) + 1, exact(now + lease_ms)
redis.call('HSET', batch, 'epoch', epoch, 'ends', ends, 'claim', claim)
redis.call('ZADD', set, ends, id)
if read.state == 'open' then clear_staged() end
return handed_out(epoch, ends)
