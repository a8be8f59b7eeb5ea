-- What the members of a join brought, as two JSON arrays in the order of the members: results (null for none) and
-- outcomes. Results are JSON already and are put side by side as they are: nothing is parsed. A large join does so in
-- slices: see slice.lua.
local LARGE_RESULT = 4096
local SLICE_MEMBERS = 1000
local SLICE_BYTES = 1048576

-- How a member ended and what it brought, of what the join noted.
local function split(noted)
  local colon = noted and string.find(noted, ':', 1, true)
  if not colon then return 'pending', 'null' end
  return string.sub(noted, 1, colon - 1), colon < #noted and string.sub(noted, colon + 1) or 'null'
end

-- All at once.
local function gather(joining, total)
  local results, outcomes, names = {}, {}, {}
  for member = 0, total - 1 do names[#names + 1] = 'm' .. member end
  local noted = #names > 0 and redis.call('HMGET', joining, unpack(names)) or {}
  for n = 1, #names do
    local outcome, result = split(noted[n])
    results[n], outcomes[n] = result, '"' .. outcome .. '"'
  end
  return '[' .. table.concat(results, ',') .. ']', '[' .. table.concat(outcomes, ',') .. ']'
end

-- The results as the join is to pass them on: `given` ones, or with '*' those of its one member, which are an array.
local function results_of(joining, total, given)
  local gathered, outcomes = gather(joining, total)
  if given == '*' then gathered = string.sub(gathered, 2, -2) end
  return given and given ~= '*' and given or gathered, outcomes
end

-- Whether that would take too long.
local function is_large(joining, total)
  return total > SLICE_MEMBERS or (tonumber(redis.call('HGET', joining, 'bytes')) or 0) > SLICE_BYTES
end
