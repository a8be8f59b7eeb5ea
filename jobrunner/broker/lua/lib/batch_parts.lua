-- The range of a part follows from its name and the size of the whole: `.p3of16`, or of earlier versions `.1` for the
-- first half. Versions that topped up halves left ranges that overlap those of the other halves, whose members a sink
-- would then write twice.
local function mend_range(read)
  local sizes = redis.call('HMGET', batch_key(read.list), 'whole', 'size')
  local size, first = number(sizes[1]) or number(sizes[2]), 0
  if not size then return end
  for part, parts in string.gmatch(string.sub(id, #read.list + 1), '%.p?(%d+)o?f?(%d*)') do
    parts = tonumber(parts) or 2
    local from = math.floor((part - 1) * size / parts)
    first, size = first + from, math.floor(part * size / parts) - from
  end
  first, size = exact(first), exact(size)
  if read.first == first and read.size == size then return end
  redis.call('HSET', batch, 'first', first, 'size', size)
  read.first, read.size = first, size
end
