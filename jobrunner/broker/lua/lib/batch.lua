-- A batch is a hash with its state, a list of members that the parts of a split batch share by range, and a list of
-- rows for each nonce. `batch` is the key of its hash, `id` its id; all other keys are named after them. A holder's
-- writes count only under the newest epoch, before its lease has ended, and while nothing is decided.
local STAGED_SLICE = 500
-- Any process may roll back an open write whose lease expired this long ago.
local ABANDONED_MS = 600000
-- For this long after a decision only its holder rolls the batch forward: two processes would count a dead member
-- twice.
local OWN_MS = 60000

local function read_batch()
  local read, words = {}, redis.call('HGETALL', batch)
  for i = 1, #words, 2 do read[words[i]] = words[i + 1] end
  return read
end

local function is_leased_as(read, epoch, now)
  return read.epoch == epoch and (number(read.ends) or 0) > now
end

local function batch_key(other) return string.sub(batch, 1, -#id - 1) .. other end

-- Short names of the queues that its rows go to.
local function batch_targets(read)
  local targets = {}
  for field in pairs(read) do
    if string.sub(field, 1, 2) == 't:' then targets[#targets + 1] = string.sub(field, 3) end
  end
  return targets
end

-- Deletes a bounded slice of the staged rows. Returns whether there are more.
local function clear_staged()
  local nonces = redis.call('SPOP', batch .. ':nonces', STAGED_SLICE)
  for n, nonce in ipairs(nonces) do nonces[n] = batch .. ':rows:' .. nonce end
  if #nonces > 0 then redis.call('UNLINK', unpack(nonces)) end
  return #nonces == STAGED_SLICE
end

-- A task is a member of its batch while its newest lease has the number of the batch and has not ended.

-- Returns for each id whether it is a member.
local function are_members(ids, lease, now)
  local newest, live = scores_of(leases, ids), {}
  local some_ended = redis.call('ZCOUNT', pending, '-inf', exact(now)) > 0
  for n, newest_number in ipairs(newest) do
    local is_newest = newest_number and (newest_number == lease or tonumber(newest_number) == tonumber(lease))
    live[n] = is_newest and not (some_ended and has_ended(ids[n], now))
  end
  return live
end

-- Leases of members end a week after their last extension, and are extended when half of that has passed.
local MEMBER_LEASE_MS = 604800000
local MEMBERS_SLICE = 1000

-- Extends a slice of the members in the second half of their leases; the batch counts as extended after the last slice.
local function extend_member_leases(read, now)
  local size = tonumber(read.size)
  if size == 0 or tonumber(read.hold) - now > MEMBER_LEASE_MS / 2 then return end
  local extended = tonumber(read.extended) or 0
  local first, last = read.first + extended, math.min(extended + MEMBERS_SLICE, size) + read.first - 1
  local ids, entries = redis.call('LRANGE', batch_key(read.list) .. ':members', first, last), {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then entries[#entries + 1], entries[#entries + 2] = exact(now + MEMBER_LEASE_MS), ids[n] end
  end
  call_sliced('ZADD', pending, entries)
  if extended + MEMBERS_SLICE < size then
    redis.call('HSET', batch, 'extended', extended + MEMBERS_SLICE)
  else
    redis.call('HSET', batch, 'hold', exact(now + MEMBER_LEASE_MS / 4 * 3), 'extended', 0)
  end
end

-- Batches that end without a decision. A whole batch is retried; a batch that keeps failing, or whose error belongs to
-- one of its rows, is split until failing members are alone.
local FAILURES_OF_A_WHOLE = 2
local TOMBSTONE_MS = 86400000
-- The cost of a run grows with the number of members if there are many, and is constant for few. So large batches are
-- split into many parts, most of which succeed, smaller batches into few parts, and the smallest at once into single
-- members.
local MANY, PARTS_OF_MANY, PARTS, FEW = 10000, 16, 4, 8

-- Decides that no staged row counts. Any process may return members at once, and bury them if the holder did not.
local function decide_without_rows(rest, now)
  redis.call('HSET', batch, 'state', 'committed', 'rest', rest, 'ends', 0)
  redis.call('ZREM', batches, id)
  redis.call('ZADD', finishing, exact(rest == 'dead' and now + OWN_MS or now), id)
end

-- Parts are due at once, with the failures of the batch that was split. A name such as `.p3of16` encodes the range of
-- the part. Version 0.1.0 makes halves, `.1` and `.2`, and computes the range of every part as that of a half, from the
-- field `size` of the root; so the root of parts has `whole` instead, which shows sinks that the server lost none of
-- its members.
local function split(read, now, failures, expiries, error_text)
  local first, size, root = tonumber(read.first), tonumber(read.size), batch_key(read.list)
  local parts = size > MANY and PARTS_OF_MANY or size > FEW and PARTS or size
  for part = 1, parts do
    local other, from = id .. '.p' .. part .. 'of' .. parts, math.floor((part - 1) * size / parts)
    redis.call('HSET', batch_key(other), 'queue', read.queue, 'state', 'open', 'epoch', 0, 'ends', 0, 'number',
      read.number, 'list', read.list, 'first', first + from, 'size', math.floor(part * size / parts) - from,
      'failures', failures, 'expiries', expiries, 'hold', read.hold, 'error', error_text)
    redis.call('ZADD', batches, exact(now), other)
  end
  redis.call('HINCRBY', root, 'users', parts - 1)
  local whole = redis.call('HGET', root, 'size')
  if whole then redis.call('HSET', root, 'whole', whole) end
  redis.call('HDEL', root, 'size')
  redis.call('HSET', batch, 'state', 'split')
  if read.list ~= id then redis.call('PEXPIRE', batch, TOMBSTONE_MS) end
  redis.call('ZREM', batches, id)
end

local function is_spent_by(read, tries, config)
  local own_limit
  if read.size == '1' then
    local member = redis.call('LINDEX', batch_key(read.list) .. ':members', read.first)
    own_limit = member and redis.pcall('HGET', tasks .. member, 'max_attempts')
  end
  return is_spent(tries, number(own_limit) or config.max_attempts)
end

-- Counts a reported failure, or an expired lease. `blamed`: the error belongs to one of its rows; 'poison': it is final
-- for a member that is alone. Returns 'again', 'split' or 'dead'.
local function count_failure(read, failed, expired, due, now, error_text, blamed)
  local failures, expiries = read.failures + failed, (tonumber(read.expiries) or 0) + expired
  redis.call('HSET', batch, 'failures', failures, 'expiries', expiries, 'error', error_text, 'ends', 0)
  local size, config = tonumber(read.size), read_config(now)
  -- Failures of the larger batches prove little about a single member whose driver dies: it may be a good member that
  -- never ran without the bad one.
  local tries = failed > 0 and failures + expiries or expiries
  if size == 0 or size == 1 and (blamed == 'poison' or is_spent_by(read, tries, config)) then
    decide_without_rows('dead', now)
    return 'dead'
  end
  if size > 1 and (blamed or failures >= FAILURES_OF_A_WHOLE or is_spent_by(read, expiries, config)) then
    split(read, now, failures, expiries, error_text)
    return 'split'
  end
  redis.call('ZADD', batches, exact(due), id)
  return 'again'
end
