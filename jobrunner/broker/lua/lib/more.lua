-- What the rows of a batch make of items. Rows are four words: id, to, payload, more; `more` is '' or a JSON object.
local mores = {[''] = {}}

local function read_more(text)
  mores[text] = mores[text] or cjson.decode(text)
  return mores[text]
end

-- Headers with those of a row laid over them. Values are strings, which cjson does not damage.
local function merged(headers, over)
  if not over then return headers end
  local is_read, all = pcall(cjson.decode, headers or '{}')
  if not is_read or type(all) ~= 'table' then return cjson.encode(over) end
  for name, value in pairs(over) do all[name] = value end
  return cjson.encode(all)
end
