-- Ends members of a batch that go nowhere. The caller takes them out of their leases.

-- Counted as `counter` says; told as succeeded, else as cancelled.
local function conclude(ids, counter, now)
  if #ids == 0 then return end
  local outcome, history = counter == 'succeeded' and counter or 'cancelled', read_history()
  local keep_ms, someone_waits, doomed = keep_for('0', history), redis.call('EXISTS', awaited) == 1, {}
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

-- Back to their places in line, no attempt spent.
local function put_back(ids, now)
  local places = {}
  for _, one in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. one, 'id', 'place')
    if task.err or not task[1] then
      drop(one)
    else
      places[#places + 1], places[#places + 2] = number(task[2]) or now, one
    end
  end
  call_sliced('ZADD', waiting, places)
  if #places > 0 then wake_one(wake) end
end
