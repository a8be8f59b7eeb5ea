-- What the members of a join brought, as two JSON arrays in the order of the members: results (null for none) and
-- outcomes. Results are JSON already and are put side by side as they are: nothing is parsed.
local function gather(joining, total)
  local results, outcomes = {}, {}
  for first = 0, total - 1, 4000 do
    local names = {}
    for member = first, math.min(first + 3999, total - 1) do names[#names + 1] = 'm' .. member end
    for _, noted in ipairs(redis.call('HMGET', joining, unpack(names))) do
      local outcome, result = string.match(noted or 'pending:', '^(%a+):(.*)$')
      results[#results + 1] = result ~= '' and result or 'null'
      outcomes[#outcomes + 1] = '"' .. outcome .. '"'
    end
  end
  return '[' .. table.concat(results, ',') .. ']', '[' .. table.concat(outcomes, ',') .. ']'
end

-- The results as the join is to pass them on: `given` ones, or with '*' those of its one member, which are an array.
local function results_of(joining, total, given)
  local gathered, outcomes = gather(joining, total)
  if given == '*' then gathered = string.sub(gathered, 2, -2) end
  return given and given ~= '*' and given or gathered, outcomes
end
