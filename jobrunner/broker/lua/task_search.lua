local set = unpack(KEYS)
local now_ms, tasks, count, most, newest, last_score, last_id, since, before, scored, payloads = unpack(ARGV, 1, 11)
-- task_search: tasks of one state that match, of a bounded piece of it. Changes nothing.
-- KEYS  set: zset, one state of a queue
-- ARGV  now_ms: unused · tasks: prefix of the task hashes · count: how many to read at most · most: at most so
--       many are found · newest: '1' = from the highest score on · last_score, last_id: the last task of the piece
--       before; '' = start · since, before: Unix ms, the second excluded, '' = open · scored: '1' = these are
--       of the score, else of the time of enqueueing · payloads: '1' = reply with payloads · then six texts, '' =
--       all: a part of the id, in lower case; all of the type; a part of the type, in lower case; a part of the last
--       error; parts of the payload, a line each; the group of the last error
-- reply {how many were read, score of the last, id of the last, '1' when that was the end, id, score, the FIELDS,
--       payload (cut; '' unless it was searched or asked for), id, ...}
-- include task_matching

local id_part, type, job_part, error_part, payload_part, group = unpack(ARGV, 12)
local LONGEST_ERROR, LONGEST_PAYLOAD, MOST_BYTES = 4000, 16385, 524288
local FIELDS = {'type', 'retry_count', 'started_at', 'enqueue_time', 'error', 'encoding', 'attempts', 'outcome',
  'expiries', 'suspect', 'run_ms'}
local longest = error_part == '' and LONGEST_ERROR or LONGEST_PAYLOAD -- the caller looks through it again
local is_descending = newest == '1'
local lowest, highest = tonumber(since) or -math.huge, tonumber(before) or math.huge
local by_score = scored == '1' and (since ~= '' or before ~= '')
local first = last_score ~= '' and rank_behind(set, is_descending, last_score, last_id)
  or by_score and rank_of_first(set, is_descending, since, before) or 0
local found = redis.call(is_descending and 'ZREVRANGE' or 'ZRANGE', set, first, first + count - 1, 'WITHSCORES')
local reply, bytes, matched = {0, last_score, last_id, #found < 2 * tonumber(count) and '1' or ''}, 0, 0

local function is_in_time(instant)
  local at = tonumber(instant)
  return since == '' and before == '' or at and at >= lowest and at < highest
end

local function has(text, part)
  if part ~= '' then bytes = bytes + #(text or '') end
  return contains(text, part)
end

local function match(id, score)
  if not has(id, id_part) then return false end
  -- Most tasks do not match, so only the fields of the conditions are read.
  local name, enqueued, failure, of =
    unpack(redis.pcall('HMGET', tasks .. id, 'type', 'enqueue_time', 'error', 'group'))
  if not enqueued or type ~= '' and name ~= type or not has(name, job_part) then return false end
  if group ~= '' and group ~= of then return false end
  if not (by_score or is_in_time(enqueued)) or not has(failure, error_part) then return false end
  local is_read = payload_part ~= '' or payloads == '1'
  local payload = is_read and redis.call('HGET', tasks .. id, 'payload') or ''
  bytes = bytes + #payload
  if not contains_any(payload, payload_part) then return false end
  local task = redis.call('HMGET', tasks .. id, unpack(FIELDS))
  reply[#reply + 1], reply[#reply + 2] = id, score
  for n = 1, #FIELDS do reply[#reply + 1] = string.sub(task[n] or '', 1, longest) end
  reply[#reply + 1] = string.sub(payload, 1, LONGEST_PAYLOAD)
  return true
end

for i = 1, #found, 2 do
  local score = tonumber(found[i + 1])
  if by_score and (is_descending and score < lowest or not is_descending and score >= highest) then
    reply[4] = '1'
    break
  end
  reply[1], reply[2], reply[3] = (i + 1) / 2, found[i + 1], found[i]
  if match(found[i], found[i + 1]) then matched = matched + 1 end
  if (matched >= tonumber(most) or bytes > MOST_BYTES) and i + 2 < #found then
    reply[4] = ''
    break
  end
end
return reply
