-- What becomes of a task whose attempt ended without a report of it.
local UNREPORTED = ' ended without a report: its worker died, hung or was cut off'

-- What may have ended its worker is a suspect; so is, at the third time, what ran when it was killed from outside, or
-- whose lease ended without a word: mostly its server was away, or its machine is gone.
local HARMLESS = 2

-- Returns what became of the task: 'waiting', 'dead' or 'gone'. `crash`: how its worker died, where that is known; else
-- the lease ended by itself. `is_suspect`: whether it may be to blame for that.
local function recover_one(now, id, lease, defaults, crash, is_suspect)
  local key = tasks .. id
  local task = redis.pcall('HMGET', key, 'id', 'retry_count', 'max_attempts', 'place', 'max_stalled', 'expiries',
    'failures', 'type', 'suspect')
  if task.err or not task[1] then
    drop(id)
    return 'gone'
  end
  local attempts, expiries = (number(task[2]) or 0) + 1, (number(task[6]) or 0) + 1
  local max_attempts = number(task[3]) or defaults.max_attempts
  redis.call('HSET', key, 'expiries', expiries, 'retry_count', attempts, 'more', 1)
  if is_suspect or expiries > HARMLESS then
    redis.call('HSET', key, 'suspect', 1)
  elseif task[9] and crash then
    redis.call('HDEL', key, 'suspect')
  end
  note_failure(key, task[7], now, attempts, crash and 'crashed' or 'expired', mark_of(lease),
    crash or 'its lease' .. UNREPORTED)
  count_one(task[8], 'recovered')
  if is_spent(attempts, max_attempts) or is_spent(expiries, number(task[5]) or max_attempts) then
    bury(id, now, crash and crash .. ' in attempt ' .. attempts or 'the lease of attempt ' .. attempts .. UNREPORTED,
      defaults)
    return 'dead'
  end
  line_up(waiting, {number(task[4]) or now, id}, defaults.by_key)
  return 'waiting'
end

local function recover(now, defaults)
  local expired = redis.call('ZRANGEBYSCORE', pending, '-inf', exact(now), 'LIMIT', 0, SLICE)
  if #expired == 0 then return 0 end
  write_even_when_full()
  local held = redis.call('ZMSCORE', leases, unpack(expired))
  for n, id in ipairs(expired) do recover_one(now, id, held[n], defaults) end
  redis.call('ZREM', pending, unpack(expired))
  redis.call('ZREM', leases, unpack(expired))
  if defaults.key_inflight > 0 then free_keys(expired) end
  return #expired
end
