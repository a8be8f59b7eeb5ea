-- The number a text stands for, or nil. Lua reads 'nan' and 'inf' too, which a damaged field may hold and no score may.
local function number(text)
  local read = tonumber(text)
  if read and read - read == 0 then return read end
end
