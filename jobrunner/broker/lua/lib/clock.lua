-- Milliseconds since 1970, microseconds as the fraction: the given clock when there is one, else the server's.
local function read_clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

-- A number as text without loss. Lua's own conversion keeps 14 digits; the server's, of a command's arguments, all.
local function exact(value)
  return string.format('%.17g', value)
end
