-- A large join gathers in slices, as the server stands still meanwhile, and into a hash that becomes that of its task or
-- is passed on. There is a limit.
local MOST_BYTES = 16777216

-- In how many pieces a result came that is too large for one call (see join_arrive_part.lua); nil where it is whole.
local function pieces_of(result) return tonumber(string.match(result, '^@(%d+)')) end

-- Adds a slice, from member `from` on, to the hash `collected`: two fields for each slice, `r0`, `o0` and so on, which
-- put side by side are the arrays; `piece` is where to go on in a result that came in pieces. Returns the member to go
-- on with; nil beyond the limit, and then it adds nothing.
local function gather_slice(joining, collected, from, total, given)
  local state = redis.call('HMGET', collected, 'parts', 'size', 'piece')
  local part, left, piece = tonumber(state[1]) or 0, MOST_BYTES - (tonumber(state[2]) or 0), tonumber(state[3]) or 0
  local brought, ended, read, member = {}, {}, 0, from
  while member < total and #ended < SLICE_MEMBERS do
    local name = 'm' .. member
    local length = redis.call('HSTRLEN', joining, name)
    if read > 0 and read + length > SLICE_BYTES then break end
    if read + length > left then return end
    local outcome, result = split(redis.call('HGET', joining, name))
    local pieces = pieces_of(result)
    if pieces then
      name = name .. '.' .. piece
      length = length + redis.call('HSTRLEN', joining, name)
      if read > 0 and read + length > SLICE_BYTES then break end
      if read + length > left then return end
      result = redis.call('HGET', joining, name)
    end
    if piece == 0 then
      ended[#ended + 1] = '"' .. outcome .. '"'
      if not given then brought[#brought + 1] = member == 0 and '[' or ',' end
    end
    if given ~= '[]' then brought[#brought + 1] = result end
    read, piece = read + length, pieces and piece + 1 or 0
    if not pieces or piece == pieces then member, piece = member + 1, 0 end
  end
  local is_last = member == total
  if given == '[]' and part == 0 then brought[1] = given end
  if is_last and not given then brought[#brought + 1] = ']' end
  local first = part == 0 and '[' or #ended > 0 and ',' or ''
  local outcomes, results = first .. table.concat(ended, ',') .. (is_last and ']' or ''), table.concat(brought)
  local size = #results + #outcomes
  if size > left then return end
  redis.call('HSET', collected, 'r' .. part, results, 'o' .. part, outcomes, 'parts', part + 1, 'piece', piece)
  redis.call('HINCRBY', collected, 'size', size)
  return member
end

-- The results in that hash as one value; nil where they are too large for that.
local function collected_whole(collected)
  local parts, size = {}, 0
  for part = 0, redis.call('HGET', collected, 'parts') - 1 do
    parts[#parts + 1], size = 'r' .. part, size + redis.call('HSTRLEN', collected, 'r' .. part)
  end
  if size > SLICE_BYTES then return end
  for n, part in ipairs(parts) do parts[n] = redis.call('HGET', collected, part) end
  return table.concat(parts)
end
