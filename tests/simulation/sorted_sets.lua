-- Sorted sets of the simulated server: {scores = {member = number}, order = {{member, number}, ...}}.
local keyspace, commands = ...
local text, integer, range = keyspace.text, keyspace.integer, keyspace.range

local function zset(key) return keyspace.get(key, 'zset') end

local function is_before(score, member, other_score, other)
  if score ~= other_score then return score < other_score end
  return member < other
end

-- The first position whose entry is not before this score and member.
local function position_of(order, score, member)
  local low, high = 1, #order + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = order[middle]
    if is_before(entry[2], entry[1], score, member) then low = middle + 1 else high = middle end
  end
  return low
end

local function remove(set, member)
  local score = set.scores[member]
  if score == nil then return false end
  table.remove(set.order, position_of(set.order, score, member))
  set.scores[member] = nil
  return true
end

local function drop_if_empty(key, set) if #set.order == 0 then keyspace.drop(key) end end

local FLAGS = {NX = true, XX = true, GT = true, LT = true, CH = true}

function commands.ZADD(key, ...)
  local words, at, flags = {...}, 1, {}
  while FLAGS[words[at]] do flags[words[at]], at = true, at + 1 end
  if not words[at] or (#words - at) % 2 == 0 then keyspace.fail('ERR syntax error') end
  local set, added, changed = zset(key), 0, 0
  if not set then
    if flags.XX then return 0 end
    set = keyspace.put(key, {type = 'zset', scores = {}, order = {}})
  end
  for n = at, #words, 2 do
    local score, member = tonumber(words[n]), text(words[n + 1])
    if not score or score ~= score then keyspace.fail('ERR value is not a valid float') end
    local known = set.scores[member]
    local is_refused = known and (flags.NX or flags.GT and score <= known or flags.LT and score >= known)
      or not known and flags.XX
    if not is_refused and known ~= score then
      if known then remove(set, member) changed = changed + 1 else added = added + 1 end
      set.scores[member] = score
      table.insert(set.order, position_of(set.order, score, member), {member, score})
    end
  end
  drop_if_empty(key, set)
  return flags.CH and added + changed or added
end

function commands.ZREM(key, first, ...)
  local set = zset(key)
  if not set then return 0 end
  local gone = remove(set, text(first)) and 1 or 0
  for _, member in ipairs({...}) do if remove(set, text(member)) then gone = gone + 1 end end
  drop_if_empty(key, set)
  return gone
end

function commands.ZCARD(key)
  local set = zset(key)
  return set and #set.order or 0
end

function commands.ZSCORE(key, member)
  local set = zset(key)
  local score = set and set.scores[text(member)]
  return score and keyspace.score(score) or false
end

function commands.ZMSCORE(key, ...)
  local set, found = zset(key), {}
  for n, member in ipairs({...}) do
    local score = set and set.scores[text(member)]
    found[n] = score and keyspace.score(score) or false
  end
  return found
end

-- Entries from one position to another, `step` 1 or -1, as the reply of a range.
local function entries(order, first, last, step, with_scores)
  local words = {}
  for n = first, last, step do
    words[#words + 1] = order[n][1]
    if with_scores then words[#words + 1] = keyspace.score(order[n][2]) end
  end
  return words
end

local function by_rank(key, first, last, with_scores, is_reversed)
  local set = zset(key)
  if not set then return {} end
  if with_scores and text(with_scores) ~= 'WITHSCORES' then
    keyspace.fail('ERR the simulated server does not know ZRANGE ... ' .. text(with_scores))
  end
  local size = #set.order
  first, last = range(first, last, size)
  if is_reversed then return entries(set.order, size - first + 1, size - last + 1, -1, with_scores) end
  return entries(set.order, first, last, 1, with_scores)
end

function commands.ZRANGE(key, first, last, with_scores) return by_rank(key, first, last, with_scores, false) end
function commands.ZREVRANGE(key, first, last, with_scores) return by_rank(key, first, last, with_scores, true) end

-- A bound of a range of scores: its number, and whether it is left out.
local function bound(word)
  word = text(word)
  local is_open = string.sub(word, 1, 1) == '('
  local number = is_open and string.sub(word, 2) or word
  if number == '-inf' then return -math.huge, is_open end
  if number == '+inf' or number == 'inf' then return math.huge, is_open end
  local read = tonumber(number)
  if not read then keyspace.fail('ERR min or max is not a float') end
  return read, is_open
end

-- The positions of the first and last entry with scores in a range.
local function positions(set, lowest, highest)
  local order = set.order
  local low, is_low_open = bound(lowest)
  local high, is_high_open = bound(highest)
  local function first_behind(score, is_behind_equal)
    local from, to = 1, #order + 1
    while from < to do
      local middle = math.floor((from + to) / 2)
      local found = order[middle][2]
      if found < score or is_behind_equal and found == score then from = middle + 1 else to = middle end
    end
    return from
  end
  return first_behind(low, is_low_open), first_behind(high, not is_high_open) - 1
end

local function by_score(key, lowest, highest, is_reversed, ...)
  local set, words = zset(key), {...}
  if not set then return {} end
  local first, last = positions(set, lowest, highest)
  local with_scores, skipped, most, at = false, 0, math.huge, 1
  while words[at] do
    if words[at] == 'WITHSCORES' then with_scores, at = true, at + 1
    elseif words[at] == 'LIMIT' then skipped, most, at = integer(words[at + 1]), integer(words[at + 2]), at + 3
    else keyspace.fail('ERR syntax error') end
  end
  if most < 0 then most = math.huge end
  if is_reversed then
    return entries(set.order, last - skipped, math.max(first, last - skipped - most + 1), -1, with_scores)
  end
  return entries(set.order, first + skipped, math.min(last, first + skipped + most - 1), 1, with_scores)
end

function commands.ZRANGEBYSCORE(key, lowest, highest, ...) return by_score(key, lowest, highest, false, ...) end
function commands.ZREVRANGEBYSCORE(key, highest, lowest, ...) return by_score(key, lowest, highest, true, ...) end

function commands.ZCOUNT(key, lowest, highest)
  local set = zset(key)
  if not set then return 0 end
  local first, last = positions(set, lowest, highest)
  return math.max(last - first + 1, 0)
end

function commands.ZRANK(key, member)
  local set = zset(key)
  local score = set and set.scores[text(member)]
  return score and position_of(set.order, score, text(member)) - 1 or false
end

function commands.ZREVRANK(key, member)
  local rank = commands.ZRANK(key, member)
  return rank and commands.ZCARD(key) - rank - 1
end

local function remove_positions(key, set, first, last)
  local gone = math.max(last - first + 1, 0)
  for _ = 1, gone do set.scores[table.remove(set.order, first)[1]] = nil end
  drop_if_empty(key, set)
  return gone
end

function commands.ZREMRANGEBYRANK(key, first, last)
  local set = zset(key)
  if not set then return 0 end
  first, last = range(first, last, #set.order)
  return remove_positions(key, set, first, last)
end

function commands.ZREMRANGEBYSCORE(key, lowest, highest)
  local set = zset(key)
  if not set then return 0 end
  local first, last = positions(set, lowest, highest)
  return remove_positions(key, set, first, last)
end
