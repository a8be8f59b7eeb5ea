-- Ends members of a batch that go nowhere. The caller takes them out of their leases.

-- Counted as `counter` says; told as succeeded, else as cancelled.
local function conclude(ids, counter, now)
  if #ids == 0 then return end
  local outcome, history = counter == 'succeeded' and counter or 'cancelled', read_history()
  local keep_ms, someone_waits, doomed = keep_for('0', history), redis.call('EXISTS', waiters) == 1, {}
  for _, one in ipairs(ids) do
    post(redis.pcall('HGET', tasks .. one, 'then'), outcome, '')
    if end_one(one, keep_ms, outcome, '', exact(now), someone_waits) then doomed[#doomed + 1] = tasks .. one end
  end
  unlink(doomed)
  if history then note_done(ids, now, history) end
  redis.call('HINCRBY', counters, counter, #ids)
end

-- Given up, with the attempts that the batch made.
local function give_up(one, attempts, reason, now, defaults)
  redis.call('HSET', tasks .. one, 'retry_count', attempts, 'more', 1)
  redis.call('HINCRBY', counters, 'failed', 1)
  bury(one, now, reason, defaults)
  tell_waiting(one, 'dead')
end

-- Applies staged rows, as many as there is room for. Who left the batch is noted; leases end behind the last row.
local tally = {moved = 0, new = 0, dead = 0, ended = 0, skipped = 0}
local gone = {}
local left = {}
local cancelled = {}

local function too_often(most) return 'it moved ' .. most .. ' times, which is its max_hops' end

local function apply_to_member(one, target, payload, more, read, now, defaults)
  local task = read_moving(one)
  gone[#gone + 1], left[one] = one, true
  if task.err or not task[1] then return drop(one) end
  local attempts, hops = (number(task[2]) or 0) + read.tries + 1, (number(task[4]) or 0) + 1
  if task[10] then
    cancelled[#cancelled + 1] = one
  elseif not target or hops > read.most_hops then
    give_up(one, attempts, target and too_often(read.most_hops) or payload, now, defaults)
    tally.dead = tally.dead + 1
  else
    move_on(one, task, target, payload, more, hops, attempts, now)
    tally.moved = tally.moved + 1
  end
end

local function apply_new(one, target, payload, more, read, now, defaults)
  local hops = more.parent and inherit(more.parent).hops + 1 or 0
  local is_in_time = hops <= read.most_hops
  if not is_in_time then target = {name = queue, ready = {}, last = 0, room = 0, enqueued = 0} end
  if not make(one, target, payload, more, now) then
    tally.skipped = tally.skipped + 1
  elseif is_in_time then
    tally.new = tally.new + 1
  else
    redis.call('HINCRBY', counters, 'enqueued', 1)
    give_up(one, 0, too_often(read.most_hops), now, defaults)
    tally.dead = tally.dead + 1
  end
end

-- Returns how many rows were applied, and the target that is full when that ended it.
local function apply(words, read, now, defaults)
  local ids, mores, new = {}, {}, {}
  for at = 1, #words, 4 do
    local n, more = #ids + 1, read_more(words[at + 3])
    ids[n], mores[n] = more.new and more.parent or words[at], more
    if more.new then new[#new + 1] = words[at] end
  end
  look_for(new)
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    local at, more = 4 * n - 3, mores[n]
    local one, to = words[at], words[at + 1]
    local target = to ~= '' and line_to(to)
    if target and target.room < 1 and not more.over then return n - 1, to end
    if more.new and (is_live or not more.parent) then
      apply_new(one, target, words[at + 2], more, read, now, defaults)
    elseif is_live and not left[one] and not more.new then
      apply_to_member(one, target, words[at + 2], more, read, now, defaults)
    else
      tally.skipped = tally.skipped + 1
    end
  end
  return #ids
end

-- Ends up to `count` members from position `swept` on, as the decision says of those that no row names. Returns how far
-- it came.
local function end_rest(read, swept, count, now, defaults)
  local size, first = tonumber(read.size), tonumber(read.first)
  local behind = math.min(swept + count, size)
  local ids = redis.call('LRANGE', hash_of(read.list) .. ':members', first + swept, first + behind - 1)
  local rest = {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then rest[#rest + 1] = ids[n] end
  end
  if read.rest == 'back' then
    put_back(rest, now)
  elseif read.rest == 'dead' then
    for _, one in ipairs(rest) do give_up(one, read.tries, read.error, now, defaults) end
    tally.dead = tally.dead + #rest
  else
    conclude(rest, read.rest, now)
  end
  if read.rest ~= 'dead' then tally.ended = tally.ended + #rest end
  call_sliced('ZREM', pending, rest)
  free_keys(rest)
  call_sliced('ZREM', leases, rest)
  redis.call('HSET', batch, 'swept', behind)
  return behind
end

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
