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

local MAX_FORWARDS = 100
local DEATHS_NAMED, DEATHS_KEEP_MS = 1000, 86400000

-- Leaves word of a death for the leader, who makes an event of it wherever the task itself went. While nobody takes it,
-- the first ones are kept for a day; how many there were is in `counters`.
local function leave_word(id, reason, type, attempts, fate)
  local deaths = string.sub(dead, 1, -5) .. 'deaths'
  if redis.call('LLEN', deaths) >= DEATHS_NAMED then return end
  local words = {id, type or '', attempts or '0', fate, string.sub(string.match(reason, '^[^\n]*'), 1, 200)}
  for n, word in ipairs(words) do words[n] = string.gsub(word, '%c', ' ') end
  if redis.call('RPUSH', deaths, table.concat(words, '\t')) == 1 then redis.call('PEXPIRE', deaths, DEATHS_KEEP_MS) end
end

-- Takes a task that was given up on to another queue of its tag, at the end of the line and with its counts at zero.
local function forward(id, now, reason, to, hops)
  local line = string.sub(tasks, 1, -6) .. string.gsub(to, '^.*/', '') .. ':'
  local priority = redis.call('HGET', tasks .. id, 'priority') or ''
  local set, score, place = join(line .. 'waiting', line .. 'scheduled', line .. 'arrival', priority, now, now)
  stand(set, score, id)
  redis.call('HSET', tasks .. id, 'queue', to, 'place', place, 'error', reason, 'retry_count', 0, 'hops', hops + 1,
    'more', 1)
  redis.call('HDEL', tasks .. id, 'expiries', 'suspect', 'expires_in_ms')
  redis.call('HINCRBY', line .. 'counters', 'moved_in', 1)
  redis.call('HINCRBY', counters, 'moved_out', 1)
  wake_one(line .. 'wake')
end

-- Gives a task up: dead at `now` with the reason, or gone at once, or forwarded, as the queue is set. The caller takes
-- it out of the set it is in.
local function bury(id, now, reason, defaults)
  local task = redis.pcall('HMGET', tasks .. id, 'then', 'type', 'retry_count')
  count_one(task[2], 'dead')
  post(task[1], 'dead', '')
  local hops = defaults.dead_letter_queue and (number(redis.call('HGET', tasks .. id, 'hops')) or 0)
  local goes_on = hops and hops < MAX_FORWARDS
  local fate = goes_on and 'moved to ' .. defaults.dead_letter_queue or defaults.dead_ttl == 0 and 'deleted' or 'kept'
  leave_word(id, reason, task[2], task[3], fate)
  if goes_on then return forward(id, now, reason, defaults.dead_letter_queue, hops) end
  if defaults.dead_ttl == 0 then
    redis.call('UNLINK', tasks .. id)
    redis.call('HINCRBY', counters, 'trimmed', 1)
    return
  end
  redis.call('ZADD', dead, now, id)
  redis.pcall('HSET', tasks .. id, 'error', reason, 'died_at', exact(now))
end

local unfit = {}

-- Whether a task in line cannot be handed out: damage is dropped, a task past its time to start is dead. One that was
-- tried has started, so that time is nothing to it.
local function is_unfit(id, is_damaged, expires_in, enqueue_time, attempts, now, defaults)
  if is_damaged then
    drop(id)
    unfit[id] = true
    return true
  end
  local limit, since = defaults.expires_in, number(enqueue_time)
  if expires_in then limit = number(expires_in) end  -- its own decides, also when that is none
  if not limit or not since or since + limit > now or (number(attempts) or 0) > 0 then return false end
  redis.call('HINCRBY', counters, 'expired', 1)
  bury(id, now, 'expired before it started', defaults)
  unfit[id] = true
  return true
end
