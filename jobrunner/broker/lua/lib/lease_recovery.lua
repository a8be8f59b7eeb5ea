-- Recovers tasks whose attempt ended without a report.
local UNREPORTED = ' ended without a report: its worker died, hung or was cut off'

-- A task that may have ended its worker is a suspect. A task that ran when its worker was killed from outside, or whose
-- lease expired, becomes a suspect the third time: usually the server was unreachable or the machine is gone.
local INNOCENT_EXPIRIES = 2

-- Returns the new state of the task: 'waiting', 'dead' or 'gone'. `crash`: the cause of its worker's death, if known;
-- nil when the lease expired. `worker`: its id, if known. `is_suspect`: whether the task may be to blame.
local function recover_task(now, id, lease, config, crash, worker, is_suspect)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'retry_count', 'max_attempts', 'place', 'max_stalled', 'expiries',
    'failures', 'type', 'suspect', 'unknown_since')
  if task.err or not task[1] then
    drop_damaged(id)
    return 'gone'
  end
  local attempts, expiries = (number(task[2]) or 0) + 1, (number(task[6]) or 0) + 1
  local max_attempts = number(task[3]) or config.max_attempts
  redis.call('HSET', key, 'expiries', expiries, 'retry_count', attempts, 'more', 1)
  if is_suspect or expiries > INNOCENT_EXPIRIES then
    redis.call('HSET', key, 'suspect', 1)
  elseif task[9] and crash then
    redis.call('HDEL', key, 'suspect')
  end
  if task[10] then redis.call('HDEL', key, 'unknown_since') end
  note_failure(key, task[7], now, attempts, crash and 'crashed' or 'expired', worker or worker_of_lease(lease),
    crash or 'its lease' .. UNREPORTED)
  count_one(task[8], 'recovered')
  local class, what = crash and 'WorkerCrashed' or 'LeaseExpired', crash or 'the lease of an attempt' .. UNREPORTED
  local group = count_unreported(task[8], class, what, id, now)
  if is_spent(attempts, max_attempts) or is_spent(expiries, number(task[5]) or max_attempts) then
    local reason = crash and crash .. ' in attempt ' .. attempts or 'the lease of attempt ' .. attempts .. UNREPORTED
    if bury(id, now, reason, config, group) then count_dead(group, 1) end
    return 'dead'
  end
  add_waiting(waiting, {number(task[4]) or now, id}, config.is_partitioned)
  return 'waiting'
end

-- For a queue in which a lease has expired.
local function recover_expired(now, config)
  local expired = redis.call('ZRANGEBYSCORE', pending, '-inf', exact(now), 'LIMIT', 0, SLICE)
  write_even_when_full()
  local numbers = redis.call('ZMSCORE', leases, unpack(expired))
  for n, id in ipairs(expired) do recover_task(now, id, numbers[n], config) end
  redis.call('ZREM', pending, unpack(expired))
  redis.call('ZREM', leases, unpack(expired))
  if config.key_inflight > 0 then free_partitions(expired) end
  return #expired
end
