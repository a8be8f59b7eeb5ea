local FAILURES_KEPT = 10
local LONGEST_REASON = 200
local COUNTED = 134217728

-- The mark of the worker whose lease has this number; '' when no worker took it. See lease_number.py.
local function mark_of(number)
  local mark = math.floor((tonumber(number) or 0) / COUNTED) - 16777216
  return mark >= 0 and string.format('%06x', mark) or ''
end

-- Adds a line about an attempt that failed or whose lease expired to those that its task's hash has (see task.py).
-- `noted` is what the field holds now.
local function note_failure(key, noted, now, attempt, what, worker, reason)
  local first = string.gsub(string.match(reason, '^[^\n]*'), '[%c]', ' ')
  local line = exact(now) .. '\t' .. attempt .. '\t' .. what .. '\t' .. worker .. '\t'
    .. string.sub(first, 1, LONGEST_REASON)
  local lines = {}
  for one in string.gmatch(noted or '', '[^\n]+') do lines[#lines + 1] = one end
  lines[#lines + 1] = line
  redis.call('HSET', key, 'failures', table.concat(lines, '\n', math.max(#lines - FAILURES_KEPT + 1, 1)))
end
