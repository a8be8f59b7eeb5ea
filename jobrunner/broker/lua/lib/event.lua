-- When this queue next needs a look, Unix ms; '' when nothing is foreseen. `lifts` is when a limit does. What upkeep saw
-- holds until something is moved.
local function next_event(defaults, lifts)
  local soonest = defaults.foreseen
    or math.min(first_score(scheduled), first_score(pending), first_score(dead) + defaults.dead_ttl)
  soonest = math.min(soonest, lifts or math.huge)
  return soonest < math.huge and exact(soonest) or ''
end
