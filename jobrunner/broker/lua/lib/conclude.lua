-- Ends members of a batch that go nowhere. The caller takes them out of their leases.

-- Counted as `counter` says; told as succeeded, else as cancelled.
local function conclude(ids, counter, now)
  if #ids == 0 then return end
  local outcome, history = counter == 'succeeded' and counter or 'cancelled', read_history()
  local keep_ms, someone_waits, doomed = keep_for('0', history), redis.call('EXISTS', waiters) == 1, {}
  for _, one in ipairs(ids) do
    post(redis.pcall('HGET', tasks .. one, 'then'), outcome, '')
    if end_one(one, keep_ms, outcome, '', exact(now), someone_waits) then doomed[#doomed + 1] = tasks .. one end
  end
  unlink(doomed)
  if history then note_done(ids, now, history) end
  redis.call('HINCRBY', counters, counter, #ids)
end

-- Given up, with the attempts that the batch made.
local function give_up(one, attempts, reason, now, defaults)
  redis.call('HSET', tasks .. one, 'retry_count', attempts, 'more', 1)
  redis.call('HINCRBY', counters, 'failed', 1)
  bury(one, now, reason, defaults)
  tell_waiting(one, 'dead')
end
