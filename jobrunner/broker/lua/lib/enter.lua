-- Makes one new task: its hash, its place in line or in the schedule, the count, a hint to an idle worker.
local function enter(id, priority, due, now, words)
  local set, score, place = join(waiting, scheduled, arrival, priority, due, now)
  redis.call('HSET', tasks .. id, 'id', id, 'place', place, 'enqueue_time', exact(now), 'retry_count', 0,
    unpack(words))
  if due > now then redis.call('HSET', tasks .. id, 'more', 1) end
  stand(set, score, id)
  redis.call('HINCRBY', counters, 'enqueued', 1)
  wake_one(wake)
end
