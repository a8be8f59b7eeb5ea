-- How long a queue keeps its history.
local AGE_OF_HISTORY_WITHOUT_AGE_MS = 604800000

-- What the settings `history_ms` and `history_max` say; nil without a history.
local function history_of(history_ms, history_max)
  local age, most = number(history_ms), number(history_max)
  if age or most then return {age = age or AGE_OF_HISTORY_WITHOUT_AGE_MS, most = most or 0} end
end
