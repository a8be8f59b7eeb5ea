local set = unpack(KEYS)
local now_ms, tasks, start, count, most, newest, id_part, type, error_part, payload_part = unpack(ARGV)
-- task_search: tasks of one state that match, of a bounded piece of it. Changes nothing.
-- KEYS  set: zset, one state of a queue
-- ARGV  now_ms: unused · tasks: prefix of the task hashes · start: rank of the first to read · count: how many to
--       read at most · most: at most so many are found · newest: '1' = ranks from the highest score on · id_part: in
--       lower case, in the id · type: all of it · error_part: in the last error · payload_part: any line; '' = all
-- reply {rank behind the last that was read, id, score, type, retry_count, started_at, enqueue_time, error,
--       payload (cut; '' unless it was searched), id, ...}
local LONGEST_ERROR, LONGEST_PAYLOAD = 4000, 16385

local first, last = tonumber(start), tonumber(start) + tonumber(count) - 1
local found = redis.call(newest == '1' and 'ZREVRANGE' or 'ZRANGE', set, first, last, 'WITHSCORES')
local reply = {first}

local function has(text, part) return part == '' or string.find(string.lower(text or ''), part, 1, true) end

local function has_any(text, parts)
  for part in string.gmatch(parts, '[^\n]+') do
    if has(text, part) then return true end
  end
  return parts == ''
end

local function match(id, score)
  if not has(id, id_part) then return false end
  local task = redis.pcall('HMGET', tasks .. id, 'type', 'retry_count', 'started_at', 'enqueue_time', 'error')
  if task.err or not task[4] or type ~= '' and task[1] ~= type or not has(task[5], error_part) then return false end
  local payload = payload_part ~= '' and redis.call('HGET', tasks .. id, 'payload') or ''
  if not has_any(payload, payload_part) then return false end
  for _, word in ipairs({id, score, task[1] or '', task[2] or '', task[3] or '', task[4],
    string.sub(task[5] or '', 1, LONGEST_ERROR), string.sub(payload, 1, LONGEST_PAYLOAD)}) do
    reply[#reply + 1] = word
  end
  return true
end

local matched = 0
for i = 1, #found, 2 do
  reply[1] = first + (i + 1) / 2
  if match(found[i], found[i + 1]) then matched = matched + 1 end
  if matched >= tonumber(most) then break end
end
return reply
