-- Defaults of a queue that nobody configured; settings.py holds the same figures and a test compares them.
local DEFAULT_MAX_ATTEMPTS = 5
local DEFAULT_KEEPALIVE_MS = 30000
local DEFAULT_DEAD_TTL_MS = 2592000000
local DEFAULT_DEAD_MAX = 0

-- `paused` is '1', or the Unix ms at which the pause ends by itself. Most queues have no settings at all.
local function read_defaults(now)
  local words = redis.call('HGETALL', settings)
  local read = {keepalive = DEFAULT_KEEPALIVE_MS, max_attempts = DEFAULT_MAX_ATTEMPTS, dead_ttl = DEFAULT_DEAD_TTL_MS,
    dead_max = DEFAULT_DEAD_MAX, max_inflight = 0, key_inflight = 0, by_key = false, at_most = 0, foreseen = false}
  if #words == 0 then return read end
  local set = {}
  for i = 1, #words, 2 do set[words[i]] = words[i + 1] end
  read.resumes = set.paused ~= '1' and number(set.paused) or nil
  read.paused = set.paused and (not read.resumes or read.resumes > now)
  read.keepalive = lease_length(set.keepalive_ms) or read.keepalive
  read.max_attempts = number(set.max_attempts) or read.max_attempts
  read.dead_ttl = number(set.dead_ttl_ms) or read.dead_ttl
  read.dead_max = number(set.dead_max) or read.dead_max
  read.max_inflight = number(set.max_inflight) or 0
  read.max_tokens, read.interval = number(set.max_tokens), number(set.interval_us)
  read.expires_in, read.dead_letter_queue = number(set.expires_in_ms), set.dead_letter_queue
  read.by_key = (set.fair or set.key_inflight or set.key_tokens) and true or false
  read.key_inflight = number(set.key_inflight) or 0
  read.key_tokens, read.key_interval = number(set.key_tokens), number(set.key_interval_us)
  read.parked, read.recheck, read.rotation_seq = set.parked, set.recheck, number(set.rotation_seq)
  read.capacity_wanted = number(set.capacity_wanted)
  read.history_ms, read.history_max = set.history_ms, set.history_max
  return read
end

-- Whether a task has no attempt left; 0 means no limit.
local function is_spent(attempts, max_attempts)
  return max_attempts > 0 and attempts >= max_attempts
end
