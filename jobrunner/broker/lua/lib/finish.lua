-- The end of a batch: what is left is a mark that it was, for as long as somebody may come back with its id.
local DONE_KEEP_MS, NAMED_KEEP_MS = 86400000, 2592000000

-- Returns whether it is the end, or much is staged still.
local function finish(read)
  if clear_staged() then return false end
  local root, users = hash_of(read.list), 0
  if redis.call('HEXISTS', root, 'users') == 1 then users = redis.call('HINCRBY', root, 'users', -1) end
  redis.call('UNLINK', batch .. ':manifest')
  redis.call('UNLINK', batch)
  redis.call('HSET', batch, 'state', 'done', 'queue', queue, 'epoch', read.epoch, 'decided', read.decided or '')
  local keep_ms = (read.attempt or '') ~= '' and NAMED_KEEP_MS or DONE_KEEP_MS
  redis.call('PEXPIRE', batch, keep_ms)
  if users <= 0 then
    redis.call('UNLINK', root .. ':members')
    redis.call('PEXPIRE', root, keep_ms)
  end
  redis.call('ZREM', finishing, id)
  return true
end
