-- The task that a join prepared becomes a task in line, or scheduled, with these words in its hash too; then only the
-- fact that the join fired is left of it, for arrivals that come twice. Returns the id of the task.
local function launch(joining, words, now)
  local task = redis.call('HMGET', joining, 'id', 'priority', 'due', 'names', 'rule', 'total', 'ttl_ms')
  for name in string.gmatch(task[4], '%S+') do
    words[#words + 1], words[#words + 2] = name, redis.call('HGET', joining, 'f:' .. name)
  end
  enter(task[1], task[2], read_due(task[3], now), now, words)
  redis.call('UNLINK', joining)
  redis.call('HSET', joining, 'rule', task[5], 'total', task[6], 'ttl_ms', task[7], 'fired', task[1])
  redis.call('PEXPIRE', joining, task[7])
  return task[1]
end
