-- Token buckets of queues and partitions. The level is kept in fractions of a token: a token is `interval` of them and
-- `tokens` of them flow in each microsecond, so that integers suffice and nothing is lost to rounding (15 tokens an
-- hour are one in exactly 240 s). It survives restarts, being on the server. A clock that steps back neither fills nor
-- drains it.
local SHORTEST_WAIT_US = 10000

-- A bucket {name, tokens, interval, level, at} as it is now; nil without a rate.
local function read_bucket(name, tokens, interval, now)
  if not (tokens and interval) then return end
  local now_us, full = math.floor(now * 1000 + 0.5), tokens * interval
  local read = {name = name, tokens = tokens, interval = interval, level = full, at = now_us}
  local state = redis.call('HMGET', name, 'level', 'at', 'interval')
  local level, at, unit = number(state[1]), number(state[2]), number(state[3])
  if not (level and at and unit) then return read end
  if now_us < at then redis.pcall('HSET', name, 'at', exact(now_us)) end  -- tokens flow on from there
  if unit ~= interval then level = level / unit * interval end
  read.level = math.min(full, level + math.max(0, now_us - at) * tokens)
  return read
end

local function whole_tokens(read)
  return read and math.floor(read.level / read.interval) or math.huge
end

local function save(read)
  redis.call('HSET', read.name, 'level', exact(read.level), 'at', exact(read.at), 'interval', exact(read.interval))
end

-- Takes tokens for tasks that were handed out, and for nothing else.
local function pay(read, count)
  if not read or count == 0 then return end
  read.level = read.level - count * read.interval
  save(read)
end

local function put_back(read, count)
  if not read then return end
  read.level = math.min(read.tokens * read.interval, read.level + count * read.interval)
  save(read)
end

-- Puts back the tokens that were paid for tasks which did not begin; `partitions` has how many there were of each
-- partition. One that waits for a token is checked by the next reserve.
local function refund(prefix, count, partitions, now)
  local set = redis.call('HMGET', settings, 'slice_tokens', 'max_tokens', 'interval_us', 'key_tokens',
    'key_interval_us')
  put_back(read_bucket(bucket, number(set[1] or set[2]), number(set[3]), now), count)
  for partition, paid in pairs(set[4] and partitions or {}) do
    local read = read_bucket(prefix .. 'bucket:' .. partition, number(set[4]), number(set[5]), now)
    put_back(read, paid)
    redis.call('PEXPIRE', read.name, exact(math.ceil(read.interval / 500)))
    redis.call('ZADD', prefix .. 'blocked', 'XX', 0, partition)
  end
end

-- When there is a token again, Unix ms, but at least SHORTEST_WAIT_US from now; never when there is one.
local function refills_at(read, now)
  if not read or read.level >= read.interval then return math.huge end
  return now + math.max((read.interval - read.level) / read.tokens, SHORTEST_WAIT_US) / 1000
end
