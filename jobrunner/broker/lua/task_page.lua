local set = unpack(KEYS)
local now_ms, after, count = unpack(ARGV)
-- task_page: ids of one state after a given id, first in the queue first. Changes nothing.
-- KEYS  set: zset, one state of a queue
-- ARGV  now_ms: unused · after: id, or '' for the first page · count: at most so many
-- reply {rank of the first, {id, ...}}; {} when `after` is not in the set

local first = 0
if after ~= '' then
  local rank = redis.call('ZRANK', set, after)
  if not rank then return {} end
  first = rank + 1
end
return {first, redis.call('ZRANGE', set, first, first + count - 1)}
