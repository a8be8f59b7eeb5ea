-- The token bucket of a queue. Its level is kept in parts of a token: a token is `interval` of them and `max_tokens` of
-- them flow in each microsecond, so that whole numbers suffice and nothing is lost to rounding (15 tokens an hour are
-- one in exactly 240 s). It survives restarts, being in the server. A clock that steps back does not fill or drain it.
local SHORTEST_LOOK_US = 10000

local function read_bucket(limits, now)
  if not (limits.max_tokens and limits.interval) then return end
  local now_us, full = math.floor(now * 1000 + 0.5), limits.max_tokens * limits.interval
  local state = redis.call('HMGET', bucket, 'level', 'at', 'interval')
  local level, at, interval = number(state[1]), number(state[2]), number(state[3])
  if not (level and at and interval) then return {level = full, at = now_us} end
  if interval ~= limits.interval then level = level / interval * limits.interval end
  level = level + math.max(0, now_us - at) * limits.max_tokens
  return {level = math.min(full, level), at = now_us}
end

-- How many more may be handed out, by the bucket and, where leases are given, by the room below max_inflight.
local function read_room(limits, level, in_flight)
  local room = math.huge
  if level then room = math.floor(level.level / limits.interval) end
  if in_flight and limits.max_inflight > 0 then room = math.min(room, math.max(0, limits.max_inflight - in_flight)) end
  return room
end

-- Tokens are paid for what was handed out, and for nothing else.
local function pay(limits, level, count)
  if not level or count == 0 then return end
  level.level = level.level - count * limits.interval
  redis.call('HSET', bucket, 'level', exact(level.level), 'at', exact(level.at), 'interval', exact(limits.interval))
end

-- When a limit lifts by itself, Unix ms: at the next token, but not sooner than it pays to look.
local function lifts_at(limits, level, now)
  if limits.paused then return limits.resumes or math.huge end
  if not level or level.level >= limits.interval then return math.huge end
  return now + math.max((limits.interval - level.level) / limits.max_tokens, SHORTEST_LOOK_US) / 1000
end
