-- The number a text stands for, or nil. Lua reads 'nan' and 'inf' too, which a damaged field may hold and no score may.
local function number(text)
  local read = tonumber(text)
  if read and read - read == 0 then return read end
end

-- The length of a lease in ms that a text stands for, or nil: one that ends as it begins, or never, is damage.
local LONGEST_LEASE_MS = 31536000000
local function lease_length(text)
  local read = number(text)
  if read and read > 0 and read <= LONGEST_LEASE_MS then return read end
end

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

-- When a task is due, Unix ms, of a word that says '' (now), '+N' (in N ms) or 'N' (at Unix ms N).
local function read_due(word, now)
  if word == '' then return now end
  return string.sub(word, 1, 1) == '+' and now + word or tonumber(word)
end
