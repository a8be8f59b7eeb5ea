local task, waiters = unpack(KEYS)
local now_ms, base, tag, id, await = unpack(ARGV)
-- task_read: one task with its state. Changes nothing, unless asked to note that a client waits for its end.
-- KEYS  task: hash · waiters: zset task id → when that was noted, Unix ms
-- ARGV  now_ms: Unix ms or '' · base: prefix of the keys of its tag · tag · id ·
--       await: '1' notes that the end of a task that is not finished is awaited
-- reply {} when there is no such task, else {state or '', score (Unix ms) or '', field, value, ...}
-- include numbers task_end

local WAITS_MS = 3600000
local reply = {'', ''}
local fields = redis.pcall('HGETALL', task)
if fields.err or #fields == 0 then return {} end
local values = {}
for i = 1, #fields, 2 do
  values[fields[i]] = fields[i + 1]
  reply[i + 2], reply[i + 3] = fields[i], fields[i + 1]
end
local queue = values.queue or ''
if string.sub(queue, 1, #tag + 1) == tag .. '/' then queue = string.sub(queue, #tag + 2) end
local ended = values.finished_at or end_time_of(task, base .. queue .. ':done', id)
if ended then
  reply[1], reply[2] = values.outcome or 'succeeded', ended
  return reply
end

for _, state in ipairs({'waiting', 'scheduled', 'pending', 'dead'}) do
  local score = redis.call('ZSCORE', base .. queue .. ':' .. state, id)
  if score then reply[1], reply[2] = state, score end
end
if await == '1' and reply[1] ~= 'dead' then
  -- A hint, so a server that is full may refuse it; entries an hour old are of clients that have stopped asking.
  local now = read_clock(now_ms)
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', exact(now - WAITS_MS))
  redis.call('ZADD', waiters, now, id)
  redis.call('PEXPIRE', waiters, exact(WAITS_MS))
end
return reply
