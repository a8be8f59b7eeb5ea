-- Sorted sets of the simulated server: {scores = {member = number}, members = {...}, numbers = {...}}, both lists in
-- order: numbers[n] is the score of members[n].
local keyspace, commands = ...
local text, integer, range, written = keyspace.text, keyspace.integer, keyspace.range, keyspace.score
local floor, max, min, insert, remove = math.floor, math.max, math.min, table.insert, table.remove

local function zset(key) return keyspace.get(key, 'zset') end

-- The first position whose entry is not before this score and member.
local function position_of(set, score, member)
  local members, numbers = set.members, set.numbers
  local low, high = 1, #members + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local number = numbers[middle]
    if number < score or number == score and members[middle] < member then low = middle + 1 else high = middle end
  end
  return low
end

local function take_out(set, member)
  local score = set.scores[member]
  if score == nil then return false end
  local at = position_of(set, score, member)
  remove(set.members, at)
  remove(set.numbers, at)
  set.scores[member] = nil
  return true
end

local function put_in(set, score, member)
  local at = position_of(set, score, member)
  insert(set.members, at, member)
  insert(set.numbers, at, score)
  set.scores[member] = score
end

local function drop_if_empty(key, set) if #set.members == 0 then keyspace.drop(key) end end

local FLAGS = {NX = true, XX = true, GT = true, LT = true, CH = true}
local NO_FLAGS = {}

-- Adds a member, or changes its score, as flags allow. Returns 1 for a new member, and 1 for a changed one.
local function add(set, score, member, flags)
  score, member = tonumber(score), text(member)
  if not score or score ~= score then keyspace.fail('ERR value is not a valid float') end
  local known = set.scores[member]
  if known == score then return 0, 0 end
  if not known then
    if flags.XX then return 0, 0 end
    put_in(set, score, member)
    return 1, 0
  end
  if flags.NX or flags.GT and score <= known or flags.LT and score >= known then return 0, 0 end
  take_out(set, member)
  put_in(set, score, member)
  return 0, 1
end

function commands.ZADD(key, ...)
  local words, at, flags = {...}, 1, NO_FLAGS
  while FLAGS[words[at]] do
    if at == 1 then flags = {} end
    flags[words[at]], at = true, at + 1
  end
  if not words[at] or (#words - at) % 2 == 0 then keyspace.fail('ERR syntax error') end
  local set, added, changed = zset(key), 0, 0
  if not set then
    if flags.XX then return 0 end
    set = keyspace.put(key, {type = 'zset', scores = {}, members = {}, numbers = {}})
  end
  for n = at, #words, 2 do
    local is_added, is_changed = add(set, words[n], words[n + 1], flags)
    added, changed = added + is_added, changed + is_changed
  end
  drop_if_empty(key, set)
  return flags.CH and added + changed or added
end

function commands.ZREM(key, first, ...)
  local set = zset(key)
  if not set then return 0 end
  local gone = take_out(set, text(first)) and 1 or 0
  if ... then
    local words = {...}
    for n = 1, #words do if take_out(set, text(words[n])) then gone = gone + 1 end end
  end
  drop_if_empty(key, set)
  return gone
end

function commands.ZCARD(key)
  local set = zset(key)
  return set and #set.members or 0
end

function commands.ZSCORE(key, member)
  local set = zset(key)
  local score = set and set.scores[text(member)]
  return score and written(score) or false
end

function commands.ZMSCORE(key, ...)
  local set, found = zset(key), {...}
  for n = 1, #found do
    local score = set and set.scores[text(found[n])]
    found[n] = score and written(score) or false
  end
  return found
end

-- Entries from one position to another, `step` 1 or -1, as the reply of a range.
local function entries(set, first, last, step, with_scores)
  local words, members, numbers, at = {}, set.members, set.numbers, 0
  for n = first, last, step do
    at = at + 1
    words[at] = members[n]
    if with_scores then
      at = at + 1
      words[at] = written(numbers[n])
    end
  end
  return words
end

local function by_rank(key, first, last, with_scores, is_reversed)
  local set = zset(key)
  if not set then return {} end
  if with_scores and text(with_scores) ~= 'WITHSCORES' then
    keyspace.fail('ERR the simulated server does not know ZRANGE ... ' .. text(with_scores))
  end
  local size = #set.members
  first, last = range(first, last, size)
  if is_reversed then return entries(set, size - first + 1, size - last + 1, -1, with_scores) end
  return entries(set, first, last, 1, with_scores)
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
  local numbers = set.numbers
  local low, is_low_open = bound(lowest)
  local high, is_high_open = bound(highest)
  local function first_behind(score, is_behind_equal)
    local from, to = 1, #numbers + 1
    while from < to do
      local middle = floor((from + to) / 2)
      local found = numbers[middle]
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
    return entries(set, last - skipped, max(first, last - skipped - most + 1), -1, with_scores)
  end
  return entries(set, first + skipped, min(last, first + skipped + most - 1), 1, with_scores)
end

function commands.ZRANGEBYSCORE(key, lowest, highest, ...) return by_score(key, lowest, highest, false, ...) end
function commands.ZREVRANGEBYSCORE(key, highest, lowest, ...) return by_score(key, lowest, highest, true, ...) end

function commands.ZCOUNT(key, lowest, highest)
  local set = zset(key)
  if not set then return 0 end
  local first, last = positions(set, lowest, highest)
  return max(last - first + 1, 0)
end

function commands.ZRANK(key, member)
  local set = zset(key)
  local score = set and set.scores[text(member)]
  return score and position_of(set, score, text(member)) - 1 or false
end

function commands.ZREVRANK(key, member)
  local rank = commands.ZRANK(key, member)
  return rank and commands.ZCARD(key) - rank - 1
end

local function remove_positions(key, set, first, last)
  local gone = max(last - first + 1, 0)
  for _ = 1, gone do
    set.scores[remove(set.members, first)] = nil
    remove(set.numbers, first)
  end
  drop_if_empty(key, set)
  return gone
end

function commands.ZREMRANGEBYRANK(key, first, last)
  local set = zset(key)
  if not set then return 0 end
  first, last = range(first, last, #set.members)
  return remove_positions(key, set, first, last)
end

function commands.ZREMRANGEBYSCORE(key, lowest, highest)
  local set = zset(key)
  if not set then return 0 end
  local first, last = positions(set, lowest, highest)
  return remove_positions(key, set, first, last)
end
