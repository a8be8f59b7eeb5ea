-- Changes the settings of a queue. Includers include `numbers` and `commands` first.
local RATES = {
  {'max_tokens', 'interval_us', 'interval', 'interval_unit'},
  {'key_tokens', 'key_interval_us', 'key_interval', 'key_interval_unit'},
}
local PARTITION_SETTINGS = {'key_inflight', 'key_tokens', 'key_interval_us', 'fair'}

-- The fields of the setting that a field belongs to. They are declared and changed together: a rate with one declared
-- field and one set by hand is neither of the two rates.
local function fields_with(field)
  for _, fields in ipairs(RATES) do
    for _, one in ipairs(fields) do
      if one == field then return fields end
    end
  end
  return {field}
end

-- Whether a condition holds for a field, or for another field of its setting.
local function any_field(field, is_so)
  for _, one in ipairs(fields_with(field)) do
    if is_so(one) then return true end
  end
  return false
end

-- `words` holds field, value, ... from `first` on; an empty value removes the field, '+N' means in N ms. Wakes a
-- worker. Works on a server that is full: its first write frees nothing.
local function change_settings(settings, wake, words, first, now_ms)
  local before = redis.call('HMGET', settings, unpack(PARTITION_SETTINGS))
  redis.call('HDEL', settings, '')
  for i = first, #words, 2 do
    local value = words[i + 1]
    if string.sub(value, 1, 1) == '+' then value = exact(read_clock(now_ms) + value) end
    if value == '' then
      redis.call('HDEL', settings, words[i])
    else
      redis.call('HSET', settings, words[i], value)
    end
  end
  -- Lets the next reserves check blocked partitions again, or return tasks from partitions to the queue.
  local after = redis.call('HMGET', settings, unpack(PARTITION_SETTINGS))
  local was_partitioned = before[1] or before[2] or before[4]
  if was_partitioned and (after[1] ~= before[1] or after[2] ~= before[2] or after[3] ~= before[3]) then
    redis.call('HSET', settings, 'recheck', 1)
  end
  if before[1] and not after[1] then
    local prefix = string.sub(settings, 1, -9)
    redis.call('UNLINK', prefix .. 'holders', prefix .. 'inflight')  -- reports no longer update them
  end
  if was_partitioned and not (after[1] or after[2] or after[4]) then redis.call('HSET', settings, 'parked', 1) end
  notify_worker(wake)
end
