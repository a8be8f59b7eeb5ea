local FAILURES_KEPT = 10
local LONGEST_REASON = 200
local LEASES_PER_WORKER = 134217728

-- The id of the worker whose lease has this number, '' for a lease that no worker took. See attempt.py.
local function worker_of_lease(number)
  local mark = math.floor((tonumber(number) or 0) / LEASES_PER_WORKER) - 16777216
  return mark >= 0 and string.format('%06x', mark) or ''
end

-- Adds a line about a failed attempt or an expired lease to the task's field `failures` (see task.py). `noted` is the
-- present value of the field.
local function note_failure(key, noted, now, attempt, what, worker, reason)
  local first = string.gsub(string.match(reason, '^[^\n]*'), '[%c]', ' ')
  local prefix = exact(now) .. '\t' .. attempt .. '\t' .. what .. '\t' .. worker .. '\t'
    .. string.sub(first, 1, LONGEST_REASON)
  local notes = {}
  for one in string.gmatch(noted or '', '[^\n]+') do notes[#notes + 1] = one end
  notes[#notes + 1] = prefix
  redis.call('HSET', key, 'failures', table.concat(notes, '\n', math.max(#notes - FAILURES_KEPT + 1, 1)))
end

local MAX_FORWARDS = 100
local DEATHS_NAMED, DEATHS_KEEP_MS = 1000, 86400000

-- Adds a death to the list from which the leader writes events, whatever happens to the task itself. Without a leader
-- the first DEATHS_NAMED are kept for a day; `counters` has the number of all.
local function record_death(id, reason, type, attempts, fate)
  local deaths = string.sub(dead, 1, -5) .. 'deaths'
  if redis.call('LLEN', deaths) >= DEATHS_NAMED then return end
  local fields = {id, type or '', attempts or '0', fate, string.sub(string.match(reason, '^[^\n]*'), 1, 200)}
  for n, word in ipairs(fields) do fields[n] = string.gsub(word, '%c', ' ') end
  if redis.call('RPUSH', deaths, table.concat(fields, '\t')) == 1 then redis.call('PEXPIRE', deaths, DEATHS_KEEP_MS) end
end

-- Moves a dead task to the end of the dead letter queue, which has the same tag, with its counts at zero, but for that
-- of all attempts. Its death ended requests to cancel it, and its hold on its lock: without the field `lock`, it has
-- none that its state covers.
local function dead_letter(id, now, reason, to, hops)
  local prefix = string.sub(tasks, 1, -6) .. string.gsub(to, '^.*/', '') .. ':'
  local priority = redis.call('HGET', tasks .. id, 'priority') or ''
  local attempts = redis.call('HMGET', tasks .. id, 'retry_count', 'total_attempts')
  local set, score, place =
    position_for(prefix .. 'waiting', prefix .. 'scheduled', prefix .. 'arrival', priority, now, now)
  insert(set, score, id)
  redis.call('HSET', tasks .. id, 'queue', to, 'place', place, 'error', reason, 'retry_count', 0, 'hops', hops + 1,
    'total_attempts', (number(attempts[2]) or 0) + (number(attempts[1]) or 0),
    'more', 1)
  redis.call('HDEL', tasks .. id, 'expiries', 'suspect', 'expires_in_ms', 'lock', 'cancel_requested', 'unknown_since')
  redis.call('HINCRBY', prefix .. 'counters', 'moved_in', 1)
  redis.call('HINCRBY', counters, 'moved_out', 1)
  notify_worker(prefix .. 'wake')
end

-- Whether the hash of a task that died at `died_at`, and is no longer kept, is to be deleted now. A hash that its
-- enqueue still needs stays until then, as for a finished task.
local function is_forgotten(id, type, died_at, now)
  local left_ms = trace_ms(id, type) - math.max(now - died_at, 0)
  if left_ms <= 0 then return true end
  redis.call('PEXPIRE', tasks .. id, exact(math.ceil(left_ms)))
  redis.call('HSET', tasks .. id, 'outcome', 'dead', 'finished_at', exact(died_at))
  return false
end

-- Makes a task dead at `now` for this reason, or deletes it at once, or moves it to the dead letter queue, by the
-- settings of the queue. The caller removes it from its present set. `group`: the group of its last error, which the
-- caller counts; nil: the error is counted here. Returns whether the task is kept.
local function bury(id, now, reason, config, group)
  local task = redis.pcall('HMGET', tasks .. id, 'then', 'type', 'retry_count')
  count_one(task[2], 'dead')
  local is_counted = group
  group = group or count_unreported(task[2], nil, reason, id, now)
  post(task[1], 'dead', '')
  local hops = config.dead_letter_queue and (number(redis.call('HGET', tasks .. id, 'hops')) or 0)
  local goes_on = hops and hops < MAX_FORWARDS
  local fate = goes_on and 'moved to ' .. config.dead_letter_queue or config.dead_ttl == 0 and 'deleted' or 'kept'
  record_death(id, reason, task[2], task[3], fate)
  if goes_on then
    dead_letter(id, now, reason, config.dead_letter_queue, hops)
    return false
  end
  if config.dead_ttl == 0 then
    if is_forgotten(id, task[2], now, now) then
      redis.call('UNLINK', tasks .. id)
    else
      redis.call('HSET', tasks .. id, 'error', reason)
    end
    redis.call('HINCRBY', counters, 'trimmed', 1)
    return false
  end
  redis.call('ZADD', dead, now, id)
  redis.pcall('HSET', tasks .. id, 'error', reason, 'died_at', exact(now), 'group', group)
  if not is_counted then count_dead(group, 1) end
  return true
end

local unfit = {}

-- Whether a waiting task cannot be handed out. Deletes a damaged task, cancels a task whose cancellation was requested
-- while an attempt ran, and makes a task dead that did not start in time. The time to start applies only to a task that
-- never began.
local function is_unfit(id, is_damaged, expires_in, enqueue_time, attempts, cancel_requested, now, config)
  if is_damaged then
    drop_damaged(id)
    unfit[id] = true
    return true
  end
  if cancel_requested then
    local task = redis.call('HMGET', tasks .. id, 'type', 'then')
    end_cancelled(id, task[1], task[2], number(attempts) or 0, DEFAULT_RESULT_TTL_MS, now)
    unfit[id] = true
    return true
  end
  local limit, since = config.expires_in, number(enqueue_time)
  if expires_in then limit = number(expires_in) end  -- its own decides, also when that is none
  if not limit or not since or since + limit > now or (number(attempts) or 0) > 0 then return false end
  redis.call('HINCRBY', counters, 'expired', 1)
  bury(id, now, 'expired before it started', config)
  unfit[id] = true
  return true
end
