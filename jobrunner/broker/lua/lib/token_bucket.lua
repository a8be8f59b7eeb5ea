-- Token buckets of queues and partitions. The level counts fractions of a token: a token has `interval` fractions, and
-- `tokens` fractions flow in each microsecond, so that integers suffice and rounding loses nothing (15 tokens an hour
-- are one in exactly 240 s). The level is on the server, so it survives restarts. A clock that steps back neither fills
-- nor drains it.
local SHORTEST_WAIT_US = 10000

-- The present state of a bucket, {name, tokens, interval, level, at}; nil without a rate.
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

-- Takes tokens, only for tasks that were handed out.
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

-- Refunds the tokens of tasks that did not begin; `partitions` has their number by partition. The next reserve checks a
-- partition that waits for a token.
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

-- The time of the next token, Unix ms, at least SHORTEST_WAIT_US from now; never when a token is left.
local function refills_at(read, now)
  if not read or read.level >= read.interval then return math.huge end
  return now + math.max((read.interval - read.level) / read.tokens, SHORTEST_WAIT_US) / 1000
end
