-- When this queue next needs a look, Unix ms; '' when nothing is foreseen. `lifts` is when a limit does.
local function next_event(defaults, lifts)
  local soonest = lifts or math.huge
  local function look(set, after)
    local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
    if first[2] then soonest = math.min(soonest, tonumber(first[2]) + after) end
  end
  look(scheduled, 0)
  look(pending, 0)
  look(dead, defaults.dead_ttl)
  return soonest < math.huge and exact(soonest) or ''
end
