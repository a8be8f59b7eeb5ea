-- Defaults of a queue that nobody configured; settings.py holds the same figures and a test compares them.
local DEFAULT_MAX_ATTEMPTS = 5
local DEFAULT_KEEPALIVE_MS = 30000
local DEFAULT_DEAD_TTL_MS = 2592000000
local DEFAULT_DEAD_MAX = 0

local function read_defaults()
  local set = redis.call('HMGET', settings, 'paused', 'keepalive_ms', 'max_attempts', 'dead_ttl_ms', 'dead_max')
  return {
    paused = set[1],
    keepalive = number(set[2]) or DEFAULT_KEEPALIVE_MS,
    max_attempts = number(set[3]) or DEFAULT_MAX_ATTEMPTS,
    dead_ttl = number(set[4]) or DEFAULT_DEAD_TTL_MS,
    dead_max = number(set[5]) or DEFAULT_DEAD_MAX,
  }
end

-- Whether a task has no attempt left; 0 means no limit.
local function is_spent(attempts, max_attempts)
  return max_attempts > 0 and attempts >= max_attempts
end
