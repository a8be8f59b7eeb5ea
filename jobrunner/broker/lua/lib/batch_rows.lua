-- What the rows of a batch make of items. Rows are four words: id, to, payload, more; `more` is '' or a JSON object.
local mores = {[''] = {}}

local function read_more(text)
  mores[text] = mores[text] or cjson.decode(text)
  return mores[text]
end

local function lay_over(headers, over)
  local all = cjson.decode(headers or '{}')
  for name, value in pairs(over) do all[name] = value end
  return all
end

-- Headers with those of a row laid over them, or these alone when the others cannot be read. Values are strings, which
-- cjson does not damage.
local function merged(headers, over)
  if not over then return headers end
  local is_read, all = pcall(lay_over, headers, over)
  return cjson.encode(is_read and all or over)
end

-- Staged rows, four words each, are read by the look: a slice of large payloads has fewer of them.
local ROWS_OF_A_LOOK, BYTES_OF_A_SLICE = 20, 1048576
local read_bytes = 0

-- The words of up to `count` rows, and whether the list ends there.
local function read_staged(rows, count)
  local words, last = {}, 0
  for first = 0, count - 1, ROWS_OF_A_LOOK do
    local wanted = math.min(ROWS_OF_A_LOOK, count - first)
    local look = redis.call('LRANGE', rows, 4 * first, 4 * (first + wanted) - 1)
    for n = 1, #look do words[last + n] = look[n] end
    for n = 3, #look, 4 do read_bytes = read_bytes + #look[n] end
    last = last + #look
    if #look < 4 * wanted then return words, true end
    if read_bytes > BYTES_OF_A_SLICE then break end
  end
  return words, false
end
