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
