-- Looks at a queue that may be damaged: what nobody can read is nothing. `own` is what its keys begin with.
local DEAD_KEEP_MS = 2592000000 -- as DEFAULT_DEAD_TTL_MS in limits.lua

local function first_of(set)
  local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(head[2]) or math.huge
end

local function size_of(set)
  local size = redis.pcall('ZCARD', set)
  return tonumber(size) or 0
end

-- When the upkeep of a queue has something to do, Unix ms; '' when nothing is foreseen.
local function due_of(own, now)
  local due = math.min(first_of(own .. 'scheduled'), first_of(own .. 'pending'))
  local kept, over = size_of(own .. 'dead'), size_of(own .. 'done')
  if kept + over > 0 then
    local set = redis.pcall('HMGET', own .. 'settings', 'dead_ttl_ms', 'dead_max', 'history_ms', 'history_max')
    if kept > 0 then due = math.min(due, first_of(own .. 'dead') + (number(set[1]) or DEAD_KEEP_MS)) end
    local most, history = number(set[2]) or 0, history_of(set[3], set[4])
    if most > 0 and kept > most then due = now end
    if history and over > 0 then due = math.min(due, first_of(own .. 'done') + history.age) end
    if history and history.most > 0 and over > history.most then due = now end
  end
  return due < math.huge and exact(due) or ''
end
