-- Tasks whose lease is over give their key room again: a key that waited for that is looked at by the next hand-out.
-- Whoever takes a task out of `pending` says so here. `holders` has the key of each task that was handed out under a
-- limit of its key, `inflight` how many of them a key has.
local function free_some(own, ids)
  local left, changed, gone, blocked, at = {}, {}, {}, {}, 0
  for _, key in ipairs(redis.call('HMGET', own .. 'holders', unpack(ids))) do
    if key then
      left[key] = (left[key] or tonumber(redis.call('HGET', own .. 'inflight', key)) or 0) - 1
    end
  end
  for key, count in pairs(left) do
    if count > 0 then
      changed[#changed + 1], changed[#changed + 2] = key, count
    else
      gone[#gone + 1] = key
    end
    blocked[at + 1], blocked[at + 2], at = 0, key, at + 2
  end
  if #changed > 0 then redis.call('HSET', own .. 'inflight', unpack(changed)) end
  if #gone > 0 then redis.call('HDEL', own .. 'inflight', unpack(gone)) end
  if at > 0 then redis.call('ZADD', own .. 'blocked', 'XX', unpack(blocked)) end
  redis.call('HDEL', own .. 'holders', unpack(ids))
end

local function free_keys(ids)
  local own = string.sub(pending, 1, -8)
  if #ids == 0 or redis.call('EXISTS', own .. 'holders') == 0 then return end
  for first = 1, #ids, 1000 do
    free_some(own, {unpack(ids, first, math.min(first + 999, #ids))})
  end
end
