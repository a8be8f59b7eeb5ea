-- Results of the members of a join: two JSON arrays in the order of the members, results (null for none) and outcomes.
-- Results are JSON already and are put side by side without parsing. A large join does so in slices: see gather_slice.
local LARGE_RESULT = 4096
local SLICE_MEMBERS = 1000
local SLICE_BYTES = 1048576

-- Splits a member's entry in the join into outcome and result.
local function split_noted(noted)
  local colon = noted and string.find(noted, ':', 1, true)
  if not colon then return 'pending', 'null' end
  return string.sub(noted, 1, colon - 1), colon < #noted and string.sub(noted, colon + 1) or 'null'
end

-- Gathers all members at once.
local function gather(joining, total)
  local results, outcomes, names = {}, {}, {}
  for member = 0, total - 1 do names[#names + 1] = 'm' .. member end
  local noted = #names > 0 and redis.call('HMGET', joining, unpack(names)) or {}
  for n = 1, #names do
    local outcome, result = split_noted(noted[n])
    results[n], outcomes[n] = result, '"' .. outcome .. '"'
  end
  return '[' .. table.concat(results, ',') .. ']', '[' .. table.concat(outcomes, ',') .. ']'
end

-- The results that the join passes on: `fixed_results`, or with '*' those of its only member, which are an array.
local function results_of(joining, total, fixed_results)
  local gathered, outcomes = gather(joining, total)
  if fixed_results == '*' then gathered = string.sub(gathered, 2, -2) end
  return fixed_results and fixed_results ~= '*' and fixed_results or gathered, outcomes
end

-- Whether gathering all at once would block the server for too long.
local function is_large(joining, total)
  return total > SLICE_MEMBERS or (tonumber(redis.call('HGET', joining, 'bytes')) or 0) > SLICE_BYTES
end

-- A large join gathers its results in slices, as a script blocks the server. The slices are in a hash that becomes the
-- hash of its task or is passed on. MOST_BYTES limits their sum.
local MOST_BYTES = 16777216

-- The number of pieces of a result that was too large for one call (see join_arrive_part.lua); nil for a whole one.
local function pieces_of(result) return tonumber(string.match(result, '^@(%d+)')) end

-- Adds a slice, from member `from` on, to the hash `collected`: two fields for each slice, `r0`, `o0` and so on, which
-- side by side are the arrays; `piece` is the next piece of a result that came in pieces. Returns the next member; nil
-- beyond MOST_BYTES, and then it adds nothing.
local function gather_slice(joining, collected, from, total, fixed_results)
  local state = redis.call('HMGET', collected, 'parts', 'size', 'piece')
  local part, left, piece = tonumber(state[1]) or 0, MOST_BYTES - (tonumber(state[2]) or 0), tonumber(state[3]) or 0
  local brought, ended, read, member = {}, {}, 0, from
  while member < total and #ended < SLICE_MEMBERS do
    local name = 'm' .. member
    local length = redis.call('HSTRLEN', joining, name)
    if read > 0 and read + length > SLICE_BYTES then break end
    if read + length > left then return end
    local outcome, result = split_noted(redis.call('HGET', joining, name))
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
      if not fixed_results then brought[#brought + 1] = member == 0 and '[' or ',' end
    end
    if fixed_results ~= '[]' then brought[#brought + 1] = result end
    read, piece = read + length, pieces and piece + 1 or 0
    if not pieces or piece == pieces then member, piece = member + 1, 0 end
  end
  local is_last = member == total
  if fixed_results == '[]' and part == 0 then brought[1] = fixed_results end
  if is_last and not fixed_results then brought[#brought + 1] = ']' end
  local first = part == 0 and '[' or #ended > 0 and ',' or ''
  local outcomes, results = first .. table.concat(ended, ',') .. (is_last and ']' or ''), table.concat(brought)
  local size = #results + #outcomes
  if size > left then return end
  redis.call('HSET', collected, 'r' .. part, results, 'o' .. part, outcomes, 'parts', part + 1, 'piece', piece)
  redis.call('HINCRBY', collected, 'size', size)
  return member
end

-- Returns the results in that hash as one value; nil when they are too large.
local function collected_whole(collected)
  local parts, size = {}, 0
  for part = 0, redis.call('HGET', collected, 'parts') - 1 do
    parts[#parts + 1], size = 'r' .. part, size + redis.call('HSTRLEN', collected, 'r' .. part)
  end
  if size > SLICE_BYTES then return end
  for n, part in ipairs(parts) do parts[n] = redis.call('HGET', collected, part) end
  return table.concat(parts)
end

-- Enqueues the task that the join prepared, with the fields in `words` added to its hash. Of the join only the fact
-- that it fired is kept, for repeated arrivals. Returns the id of the task.
local function start_join_task(joining, words, now)
  local task = redis.call('HMGET', joining, 'id', 'priority', 'due', 'names', 'rule', 'total', 'ttl_ms')
  for name in string.gmatch(task[4], '%S+') do
    words[#words + 1], words[#words + 2] = name, redis.call('HGET', joining, 'f:' .. name)
  end
  create_task(task[1], task[2], read_due(task[3], now), now, words)
  redis.call('UNLINK', joining)
  redis.call('HSET', joining, 'rule', task[5], 'total', task[6], 'ttl_ms', task[7], 'fired', task[1])
  redis.call('PEXPIRE', joining, task[7])
  return task[1]
end

-- Raises an error when a key that a join writes later is damaged. Called before an arrival is noted: repeating a noted
-- arrival changes nothing, so a join that failed after the note would never continue.
local function check_keys()
  for _, set in ipairs({waiting, scheduled, wake}) do redis.call('ZCARD', set) end
  redis.call('STRLEN', arrival)
  redis.call('HLEN', outbox)
  if redis.call('HEXISTS', counters, 'enqueued') == 1 then redis.call('HINCRBY', counters, 'enqueued', 0) end
end

local TOO_LARGE = ' steps before it are more than 16 MiB together: let them return less, such as where they stored it, '
local SEND_AGAIN = 'and send the flow again'

-- Makes the prepared task dead, because its results are too large. When it is requeued, it finds unreadable results
-- instead of none.
local function bury_join_task(joining, total, now, config)
  local id = start_join_task(joining, {'results', 'too large', 'outcomes', '[]'}, now)
  leave_partition(string.sub(waiting, 1, -8), id)
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', scheduled, id)
  bury(id, now, 'the results of the ' .. total .. TOO_LARGE .. SEND_AGAIN, config)
  notify_waiters(id, 'dead')
end
