-- A batch: a hash with its state, a list of members that halves of a split batch share by range, a list for the rows of
-- each nonce. `batch` is the key of its hash, `id` its id; all other keys are named after them. What a holder writes
-- counts only under the newest epoch, before its lease has ended, and while nothing is decided.
local STAGED_SLICE = 500

local function read_batch()
  local read, words = {}, redis.call('HGETALL', batch)
  for i = 1, #words, 2 do read[words[i]] = words[i + 1] end
  return read
end

local function is_held(read, epoch, now)
  return read.epoch == epoch and (number(read.ends) or 0) > now
end

local function hash_of(other) return string.sub(batch, 1, -#id - 1) .. other end

-- The names of the queues that its rows go to.
local function targets_of(read)
  local targets = {}
  for field in pairs(read) do
    if string.sub(field, 1, 2) == 't:' then targets[#targets + 1] = string.sub(field, 3) end
  end
  return targets
end

-- Removes a bounded slice of what was staged. Returns whether there is more.
local function clear_staged()
  local nonces = redis.call('SPOP', batch .. ':nonces', STAGED_SLICE)
  for n, nonce in ipairs(nonces) do nonces[n] = batch .. ':rows:' .. nonce end
  if #nonces > 0 then redis.call('UNLINK', unpack(nonces)) end
  return #nonces == STAGED_SLICE
end

-- A member has not left its batch while its newest lease has the number of the batch, and the hold on it has not ended.

-- Beside ids, whether each is such a member.
local function are_members(ids, given, now)
  local newest, live = scores_of(leases, ids), {}
  local some_ended = redis.call('ZCOUNT', pending, '-inf', exact(now)) > 0
  for n, held in ipairs(newest) do
    local is_newest = held and (held == given or tonumber(held) == tonumber(given))
    live[n] = is_newest and not (some_ended and has_ended(ids[n], now))
  end
  return live
end

-- The hold of a batch on its members ends a week behind the last time it was extended, and before half of that is over.
local HOLD_MS = 604800000
local HELD_SLICE = 1000

-- In the second half of the hold, a slice of the members; the hold counts as extended when all were.
local function extend_hold(read, now)
  local size = tonumber(read.size)
  if size == 0 or tonumber(read.hold) - now > HOLD_MS / 2 then return end
  local extended = tonumber(read.extended) or 0
  local first, last = read.first + extended, math.min(extended + HELD_SLICE, size) + read.first - 1
  local ids, entries = redis.call('LRANGE', hash_of(read.list) .. ':members', first, last), {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then entries[#entries + 1], entries[#entries + 2] = exact(now + HOLD_MS), ids[n] end
  end
  call_sliced('ZADD', pending, entries)
  if extended + HELD_SLICE < size then
    redis.call('HSET', batch, 'extended', extended + HELD_SLICE)
  else
    redis.call('HSET', batch, 'hold', exact(now + HOLD_MS / 4 * 3), 'extended', 0)
  end
end

-- What becomes of a batch that did not come to a decision. Whole ones are tried again; what fails again and again is
-- halved until the members that fail are alone.
local FAILURES_OF_A_WHOLE = 2
local TOMBSTONE_MS = 86400000

-- Leaves the decision to be rolled forward by anyone: nothing that was staged counts.
local function decide_without_rows(rest, now)
  redis.call('HSET', batch, 'state', 'committed', 'rest', rest, 'ends', 0)
  redis.call('ZREM', batches, id)
  redis.call('ZADD', finishing, exact(now), id)
end

-- Two batches, due at once, with the failures of the one they were.
local function halve(read, now, failures, expiries, error_text)
  local first, size = tonumber(read.first), tonumber(read.size)
  local left = math.floor(size / 2)
  for half, range in ipairs({{first, left}, {first + left, size - left}}) do
    local other = id .. '.' .. half
    redis.call('HSET', hash_of(other), 'queue', read.queue, 'state', 'open', 'epoch', 0, 'ends', 0, 'number',
      read.number, 'list', read.list, 'first', range[1], 'size', range[2], 'failures', failures, 'expiries', expiries,
      'hold', read.hold, 'error', error_text)
    redis.call('ZADD', batches, exact(now), other)
  end
  redis.call('HINCRBY', hash_of(read.list), 'users', 1)
  redis.call('HSET', batch, 'state', 'split')
  if read.list ~= id then redis.call('PEXPIRE', batch, TOMBSTONE_MS) end
  redis.call('ZREM', batches, id)
end

local function is_spent_by(read, tries, defaults)
  local own
  if read.size == '1' then
    local member = redis.call('LINDEX', hash_of(read.list) .. ':members', read.first)
    own = member and redis.pcall('HGET', tasks .. member, 'max_attempts')
  end
  return is_spent(tries, number(own) or defaults.max_attempts)
end

-- Counts a failure that was reported, or a lease that ended without a report. Returns 'again', 'split' or 'dead'.
local function set_back(read, failed, expired, due, now, error_text)
  local failures, expiries = read.failures + failed, (tonumber(read.expiries) or 0) + expired
  redis.call('HSET', batch, 'failures', failures, 'expiries', expiries, 'error', error_text, 'ends', 0)
  local size, defaults = tonumber(read.size), read_defaults(now)
  -- Failures of the batches that it was a part of say little about a member whose driver dies: it may be a good one
  -- that was never run without the bad one.
  local tries = failed > 0 and failures + expiries or expiries
  if size == 0 or size == 1 and is_spent_by(read, tries, defaults) then
    decide_without_rows('dead', now)
    return 'dead'
  end
  if size > 1 and (failures >= FAILURES_OF_A_WHOLE or is_spent_by(read, expiries, defaults)) then
    halve(read, now, failures, expiries, error_text)
    return 'split'
  end
  redis.call('ZADD', batches, exact(due), id)
  return 'again'
end
