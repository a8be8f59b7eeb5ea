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
