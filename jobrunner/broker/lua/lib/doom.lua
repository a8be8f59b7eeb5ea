local TOO_LARGE = ' steps before it are more than 16 MiB together: let them return less, such as where they stored it, '
local SEND_AGAIN = 'and send the flow again'

-- The task that a join prepared becomes a dead one, as what it is to be given is too large. Put back, it finds results
-- that nobody can read, rather than none.
local function doom(joining, total, now, defaults)
  local id = launch(joining, {'results', 'too large', 'outcomes', '[]'}, now)
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', scheduled, id)
  bury(id, now, 'the results of the ' .. total .. TOO_LARGE .. SEND_AGAIN, defaults)
  tell_waiting(id, 'dead')
end
