-- Reads staged rows. A row has four list elements: id, to, payload, options; options are '' or a JSON object.
local row_options = {[''] = {}}

local function read_options(text)
  row_options[text] = row_options[text] or cjson.decode(text)
  return row_options[text]
end

local function overlay(headers, new)
  local all = cjson.decode(headers or '{}')
  for name, value in pairs(new) do all[name] = value end
  return all
end

-- Merges the headers of a row into the item's headers; only the row's when the item's cannot be parsed. Values are
-- strings, which cjson does not damage.
local function merge_headers(headers, new)
  if not new then return headers end
  local is_read, all = pcall(overlay, headers, new)
  return cjson.encode(is_read and all or new)
end

-- Rows are read a few at a time, so that a slice with large payloads ends early.
local ROWS_PER_READ, BYTES_OF_A_SLICE = 20, 1048576
local read_bytes = 0

-- Returns the elements of up to `count` rows, and whether the list ends there.
local function read_staged(rows, count)
  local words, last = {}, 0
  for first = 0, count - 1, ROWS_PER_READ do
    local wanted = math.min(ROWS_PER_READ, count - first)
    local slice = redis.call('LRANGE', rows, 4 * first, 4 * (first + wanted) - 1)
    for n = 1, #slice do words[last + n] = slice[n] end
    for n = 3, #slice, 4 do read_bytes = read_bytes + #slice[n] end
    last = last + #slice
    if #slice < 4 * wanted then return words, true end
    if read_bytes > BYTES_OF_A_SLICE then break end
  end
  return words, false
end
