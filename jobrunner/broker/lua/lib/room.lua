-- Tells one of those who wait for room in a full queue that there is some. A hint, as in wake.lua.
local function hint_room(wake)
  local room = string.gsub(wake, 'wake$', 'capacity')
  redis.call('ZADD', room, 0, '1')
end
