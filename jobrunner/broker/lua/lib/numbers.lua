-- Parses a number, nil for none. Lua parses 'nan' and 'inf' too, which a damaged field may hold but a score must not.
local function number(text)
  local read = tonumber(text)
  if read and read - read == 0 then return read end
end

-- Parses the length of a lease in ms; nil for one that would end at once, or never: the field is damaged.
local LONGEST_LEASE_MS = 31536000000
local function lease_length(text)
  local read = number(text)
  if read and read > 0 and read <= LONGEST_LEASE_MS then return read end
end

-- The time in ms since 1970, with microseconds as the fraction: `clock_ms`, or the server's clock for ''.
local function read_clock(clock_ms)
  if clock_ms ~= '' then return tonumber(clock_ms) end
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

-- Formats a number without loss. Lua's own conversion keeps 14 digits; that of a command's arguments keeps all.
local function exact(value)
  return string.format('%.17g', value)
end

-- The due time of a task, Unix ms: '' is now, '+N' in N ms, 'N' at Unix ms N.
local function read_due(word, now)
  if word == '' then return now end
  return string.sub(word, 1, 1) == '+' and now + word or tonumber(word)
end
