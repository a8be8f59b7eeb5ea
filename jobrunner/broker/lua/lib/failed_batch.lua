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
