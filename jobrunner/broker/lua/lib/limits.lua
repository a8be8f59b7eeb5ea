-- Defaults of a queue that nobody configured; settings.py holds the same figures and a test compares them.
local DEFAULT_MAX_ATTEMPTS = 5
local DEFAULT_KEEPALIVE_MS = 30000
local DEFAULT_DEAD_TTL_MS = 2592000000
local DEFAULT_DEAD_MAX = 0

-- `paused` is '1', or the Unix ms at which the pause ends by itself.
local function read_defaults(now)
  local set = redis.call('HMGET', settings, 'paused', 'keepalive_ms', 'max_attempts', 'dead_ttl_ms', 'dead_max',
    'max_inflight', 'max_tokens', 'interval_us', 'expires_in_ms', 'dead_to', 'fair', 'key_inflight', 'key_tokens',
    'key_interval_us', 'room_wanted')
  local resumes = set[1] ~= '1' and number(set[1]) or nil
  return {
    paused = set[1] and (not resumes or resumes > now),
    resumes = resumes,
    keepalive = lease_length(set[2]) or DEFAULT_KEEPALIVE_MS,
    max_attempts = number(set[3]) or DEFAULT_MAX_ATTEMPTS,
    dead_ttl = number(set[4]) or DEFAULT_DEAD_TTL_MS,
    dead_max = number(set[5]) or DEFAULT_DEAD_MAX,
    max_inflight = number(set[6]) or 0,
    max_tokens = number(set[7]),
    interval = number(set[8]),
    expires_in = number(set[9]),
    dead_to = set[10],
    by_key = set[11] or set[12] or set[13],
    key_inflight = number(set[12]) or 0,
    key_tokens = number(set[13]),
    key_interval = number(set[14]),
    room_wanted = number(set[15]),
  }
end

-- Whether a task has no attempt left; 0 means no limit.
local function is_spent(attempts, max_attempts)
  return max_attempts > 0 and attempts >= max_attempts
end
