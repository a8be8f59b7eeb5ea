-- A task of a flow that ends leaves word of it in the outbox of its tag, in the step that ends it; the relay takes it on
-- to the joins that wait for it. The field names outcome and addressees, so what is left twice is there once.
local function post(onward, outcome, result)
  if not onward or onward == '' or onward.err then return false end
  redis.call('HSET', outbox, outcome .. ':' .. onward, result)
  return true
end
