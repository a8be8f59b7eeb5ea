-- Comparisons of a search: parts of texts, and the position in a sorted set at which it continues.

-- Whether a text, which may be missing, contains a part in lower case; everything contains ''.
local function contains(text, part) return part == '' or string.find(string.lower(text or ''), part, 1, true) ~= nil end

-- Whether a text contains any line of `parts`.
local function contains_any(text, parts)
  local lowered = parts ~= '' and string.lower(text)
  for part in string.gmatch(parts, '[^\n]+') do
    if string.find(lowered, part, 1, true) then return true end
  end
  return parts == ''
end

-- Whether one member of a sorted set precedes another with the same score. Lua's `<` depends on the locale of the
-- server.
local function is_less(one, other)
  for i = 1, math.min(#one, #other) do
    local left, right = string.byte(one, i), string.byte(other, i)
    if left ~= right then return left < right end
  end
  return #one < #other
end

-- The rank after a member that may be gone: ranks shift while members come and go, scores and ids do not.
local function rank_behind(set, is_descending, score, id)
  if redis.call('ZSCORE', set, id) == score then
    return redis.call(is_descending and 'ZREVRANK' or 'ZRANK', set, id) + 1
  end
  local lowest, highest = is_descending and '(' .. score or '-inf', is_descending and '+inf' or '(' .. score
  local low = redis.call('ZCOUNT', set, lowest, highest)
  local high = low + redis.call('ZCOUNT', set, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local one = redis.call(is_descending and 'ZREVRANGE' or 'ZRANGE', set, middle, middle)[1]
    local is_behind = is_descending and is_less(one, id) or not is_descending and is_less(id, one)
    if is_behind then high = middle else low = middle + 1 end
  end
  return low
end

-- The rank of the first member of the scores from `since` on and before `before`; '' = open.
local function rank_of_first(set, is_descending, since, before)
  if is_descending then return before ~= '' and redis.call('ZCOUNT', set, before, '+inf') or 0 end
  return since ~= '' and redis.call('ZCOUNT', set, '-inf', '(' .. since) or 0
end
