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
