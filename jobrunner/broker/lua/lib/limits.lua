-- Defaults of a queue that nobody configured; settings.py holds the same figures and a test compares them.
local DEFAULT_MAX_ATTEMPTS = 5
local DEFAULT_KEEPALIVE_MS = 30000
local DEFAULT_DEAD_TTL_MS = 2592000000

-- Whether a task has no attempt left; 0 means no limit.
local function is_spent(attempts, max_attempts)
  return max_attempts > 0 and attempts >= max_attempts
end
