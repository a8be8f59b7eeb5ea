local FAILURES_KEPT = 10
local LONGEST_REASON = 200

-- Adds a line about an attempt that failed or whose lease expired to those that its task's hash has (see task.py).
-- `noted` is what the field holds now.
local function note_failure(key, noted, now, attempt, what, reason)
  local first = string.gsub(string.match(reason, '^[^\n]*'), '[%c]', ' ')
  local line = exact(now) .. '\t' .. attempt .. '\t' .. what .. '\t\t' .. string.sub(first, 1, LONGEST_REASON)
  local lines = {}
  for one in string.gmatch(noted or '', '[^\n]+') do lines[#lines + 1] = one end
  lines[#lines + 1] = line
  redis.call('HSET', key, 'failures', table.concat(lines, '\n', math.max(#lines - FAILURES_KEPT + 1, 1)))
end
