local task = unpack(KEYS)
local now_ms, base, tag, id, await = unpack(ARGV)
-- show: one task as it stands. Changes nothing, unless asked to note that someone waits for its end.
-- KEYS  task: hash
-- ARGV  now_ms: unused · base: what the keys of its tag begin with · tag · id
--       await: '1' marks a task that is not finished as awaited, so that its end is published
-- reply {} when there is no such task, else {state or '', score (Unix ms) or '', field, value, ...}

local fields = redis.call('HGETALL', task)
if #fields == 0 then return {} end
local values = {}
for i = 1, #fields, 2 do values[fields[i]] = fields[i + 1] end
local state, score = values.outcome or '', values.finished_at or ''
if state == '' then
  local queue = values.queue or ''
  if string.sub(queue, 1, #tag + 1) == tag .. '/' then queue = string.sub(queue, #tag + 2) end
  for _, name in ipairs({'waiting', 'scheduled', 'pending', 'dead'}) do
    local found = redis.call('ZSCORE', base .. queue .. ':' .. name, id)
    if found then state, score = name, found end
  end
  if await == '1' and state ~= 'dead' then redis.call('HSET', task, 'awaited', 1) end
end
return {state, score, unpack(fields)}
