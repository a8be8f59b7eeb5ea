local settings, wake, declared = unpack(KEYS)
local now_ms, ttl_ms, digest, place = unpack(ARGV, 1, 4)
-- queue_declare: a worker publishes the settings that a queue is declared with, and repeats that while it runs.
-- KEYS  settings: hash · wake: zset · declared: hash; `=FIELD`: the value in force; `by:FIELD`: when it was changed
--       by hand (Unix ms), a blank, by whom; `digest`, `place`: of the declaration in force; `deployed`: the
--       published declarations, in the order of their first time: digest and until when (Unix ms), with blanks between
-- ARGV  now_ms: Unix ms or '' · ttl_ms: how long this declaration counts as published; 0 = that of a program, no
--       worker · digest: of it (hex) · place: where it stands · then field, value, ...; an empty value: the default
-- reply the fields that were changed
-- A setting changes when its declared value does, so that a change by hand lasts until then. While several declarations
-- are published, as during a deploy, the newest one is in force; when no worker publishes that any more, because it was
-- rolled back, the one before it is in force again. A program changes nothing while workers publish, as it may know
-- less of the queue; and without a field it ends no settings that another place declares.
-- Works on a server that is full: a worker that starts there makes room. Its first write frees nothing.
-- include numbers commands settings_change

-- Notes that a worker publishes this declaration; returns whether another one is to be in force.
local function is_outdated(now)
  local kept, own, newer, is_of_program = {}, false, false, ttl_ms == '0'
  for known, ends in string.gmatch(redis.call('HGET', declared, 'deployed') or '', '(%x+) (%d+)') do
    if known == digest and not is_of_program then
      own, ends = true, exact(math.floor(now + ttl_ms))
    elseif tonumber(ends) < now then
      ends = nil
    elseif own or is_of_program then
      newer = true
    end
    if ends then kept[#kept + 1] = known .. ' ' .. ends end
  end
  if is_of_program then return newer or not ARGV[5] and redis.call('HGET', declared, 'place') ~= place end
  if not own then kept[#kept + 1] = digest .. ' ' .. exact(math.floor(now + ttl_ms)) end
  redis.call('HSET', declared, 'deployed', table.concat(kept, ' '))
  return newer
end

redis.call('HDEL', declared, '')
if is_outdated(read_clock(now_ms)) or redis.call('HGET', declared, 'digest') == digest then return {} end
local values, changes, changed = {}, {}, {}
local function change(field, value)
  changes[#changes + 1], changes[#changes + 2], changed[#changed + 1] = field, value, field
  redis.call('HDEL', declared, 'by:' .. field)
end
for i = 5, #ARGV, 2 do values[ARGV[i]] = ARGV[i + 1] end

local function is_by_hand(one) return redis.call('HEXISTS', declared, 'by:' .. one) == 1 end
local function is_new(one) return values[one] and redis.call('HGET', declared, '=' .. one) ~= values[one] end

for _, name in ipairs(redis.call('HKEYS', declared)) do
  local field = string.match(name, '^=(.*)')
  if field and not values[field] then -- declared no more: the default, or what an operator chose instead
    if not any_field(field, is_by_hand) then change(field, '') end
    redis.call('HDEL', declared, name)
  end
end
local new = {}
for i = 5, #ARGV, 2 do
  if any_field(ARGV[i], is_new) then new[#new + 1] = i end
end
for _, i in ipairs(new) do
  change(ARGV[i], ARGV[i + 1])
  redis.call('HSET', declared, '=' .. ARGV[i], ARGV[i + 1])
end
redis.call('HSET', declared, 'digest', digest, 'place', place)
if #changes > 0 then change_settings(settings, wake, changes, 1, now_ms) end
return changed
