-- The task that a join prepared becomes a task in line, or scheduled; then only the fact that the join fired is left of
-- it, for arrivals that come twice.
local function launch(joining, results, outcomes, now)
  local task = redis.call('HMGET', joining, 'id', 'priority', 'due', 'names', 'rule', 'total', 'ttl_ms')
  local id, due, words = task[1], task[3], {}
  for name in string.gmatch(task[4], '%S+') do
    words[#words + 1], words[#words + 2] = name, redis.call('HGET', joining, 'f:' .. name)
  end
  if due == '' then due = now else due = string.sub(due, 1, 1) == '+' and now + due or tonumber(due) end
  local set, score, place = join(waiting, scheduled, arrival, task[2], due, now)
  redis.call('HSET', tasks .. id, 'id', id, 'place', place, 'enqueue_time', exact(now), 'retry_count', 0,
    'results', results, 'outcomes', outcomes, unpack(words))
  redis.call('ZADD', set, score, id)
  redis.call('HINCRBY', counters, 'enqueued', 1)
  wake_one(wake)
  redis.call('UNLINK', joining)
  redis.call('HSET', joining, 'rule', task[5], 'total', task[6], 'ttl_ms', task[7], 'fired', id)
  redis.call('PEXPIRE', joining, task[7])
end
