local settings, wake, declared = unpack(KEYS)
local now_ms, by, changed = unpack(ARGV, 1, 3)
-- configure: sets and removes settings of a queue in one step and wakes a worker; the others stay as they are.
-- KEYS  settings: hash · wake: zset · declared: hash (see queue_declare.lua)
-- ARGV  now_ms: Unix ms or '' · by: the person who changes them, or '' · changed: the fields that an earlier step of
--       the same change has written, separated by blanks · then field, value, ...; an empty value removes the field,
--       '+N' means in N ms
-- reply 1
-- Works on a server that is full, where pausing a queue may help. Its first write frees nothing.
-- include numbers commands settings_change

local values = {}
for i = 4, #ARGV, 2 do values[ARGV[i]] = ARGV[i + 1] end

-- Whether a hash has the given values of the setting that a field belongs to; `missing` stands for a missing field.
local function is_same(hash, prefix, field, missing)
  for _, one in ipairs(fields_with(field)) do
    if values[one] and (redis.call('HGET', hash, prefix .. one) or missing) ~= values[one] then return false end
  end
  return true
end

local function was_changed(one) return string.find(' ' .. changed .. ' ', ' ' .. one .. ' ', 1, true) end

redis.call('HDEL', declared, '')
for i = 4, #ARGV, 2 do
  local field = ARGV[i]
  if by == '' or is_same(declared, '=', field) then
    redis.call('HDEL', declared, 'by:' .. field)  -- back to what is declared: no change any more
  elseif any_field(field, was_changed) or not is_same(settings, '', field, '') then
    redis.call('HSET', declared, 'by:' .. field, exact(math.floor(read_clock(now_ms))) .. ' ' .. by)
  end
end
change_settings(settings, wake, ARGV, 4, now_ms)
return 1
