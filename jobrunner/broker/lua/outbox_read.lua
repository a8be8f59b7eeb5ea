local outbox = unpack(KEYS)
local now_ms, count, bytes = unpack(ARGV)
-- outbox_read: reads entries of an outbox in random order, so that an undeliverable entry does not block the
--       others.
-- KEYS  outbox: hash
-- ARGV  now_ms: unused · count: at most so many · bytes: of results, at most so many; one entry may have more
-- reply {'1' when there may be more, else '', then for each entry: its field, its result}

local fields = redis.call('HRANDFIELD', outbox, count) or {}
local reply, left = {#fields == tonumber(count) and '1' or ''}, tonumber(bytes)
-- The fields are random, but not their order, and math.random repeats itself in each call: the clock gives the start.
local first = redis.call('TIME')[2]
for n = 1, #fields do
  local field = fields[(first + n) % #fields + 1]
  left = left - redis.call('HSTRLEN', outbox, field)
  if left < 0 and #reply > 1 then
    reply[1] = '1'
    break
  end
  reply[#reply + 1], reply[#reply + 2] = field, redis.call('HGET', outbox, field)
end
return reply
