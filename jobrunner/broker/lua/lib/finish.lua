-- The end of a batch: what is left is a mark that it was, for as long as somebody may come back with its id.
local DONE_KEEP_MS = 86400000

-- Returns whether it is the end, or much is staged still.
local function finish(read)
  if clear_staged() then return false end
  local root, users = hash_of(read.list), 0
  if read.size ~= '0' then users = redis.call('HINCRBY', root, 'users', -1) end
  redis.call('UNLINK', batch .. ':manifest')
  redis.call('UNLINK', batch)
  redis.call('HSET', batch, 'state', 'done', 'queue', queue, 'epoch', read.epoch, 'decided', read.decided or '')
  redis.call('PEXPIRE', batch, DONE_KEEP_MS)
  if users <= 0 then
    redis.call('UNLINK', root .. ':members')
    redis.call('PEXPIRE', root, DONE_KEEP_MS)
  end
  redis.call('ZREM', closing, id)
  return true
end
