-- Ends members that go to no queue. The caller removes their leases.

-- Counts the members in the total `counter`; their outcome is 'succeeded' for the total of that name, else 'cancelled'.
local function end_members(ids, counter, now)
  if #ids == 0 then return end
  local outcome, history = counter == 'succeeded' and counter or 'cancelled', read_history()
  local keep_ms, has_waiters, doomed = ttl_for('0', history), redis.call('EXISTS', waiters) == 1, {}
  for _, one in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. one, 'then', 'type')
    local own_ms = exact(math.max(tonumber(keep_ms), trace_ms(one, task[2])))
    post(task[1], outcome, '')
    if end_task(one, own_ms, outcome, '', exact(now), has_waiters) then doomed[#doomed + 1] = tasks .. one end
  end
  unlink(doomed)
  if history then add_to_history(ids, now, history) end
  redis.call('HINCRBY', counters, counter, #ids)
end

-- The attempts at the batch count as the member's own.
local function bury_member(one, attempts, reason, now, config)
  redis.call('HSET', tasks .. one, 'retry_count', attempts, 'more', 1)
  redis.call('HINCRBY', counters, 'failed', 1)
  bury(one, now, reason, config)
  notify_waiters(one, 'dead')
end

-- Applies staged rows while the target queues have capacity. The caller ends the leases of `left_ids` after the last
-- row.
local tally = {moved = 0, new = 0, dead = 0, ended = 0, skipped = 0}
local left_ids = {}
local has_left = {}
local cancelled = {}

local function too_often(most) return 'it moved ' .. most .. ' times, which is its max_hops' end

local function apply_to_member(one, target, payload, options, read, now, config)
  local task = read_moving(one)
  left_ids[#left_ids + 1], has_left[one] = one, true
  if task.err or not task[1] then return drop_damaged(one) end
  local attempts, hops = (number(task[2]) or 0) + read.tries + 1, (number(task[4]) or 0) + 1
  if task[10] then
    cancelled[#cancelled + 1] = one
  elseif not target or hops > read.most_hops then
    bury_member(one, attempts, target and too_often(read.most_hops) or payload, now, config)
    tally.dead = tally.dead + 1
  else
    move_member(one, task, target, payload, options, hops, attempts, now)
    tally.moved = tally.moved + 1
  end
end

local function apply_new(one, target, payload, options, read, now, config)
  local hops = options.parent and inherit(options.parent).hops + 1 or 0
  local is_in_time = hops <= read.most_hops
  if not is_in_time then target = {name = queue, ready = {}, last = 0, capacity = 0, enqueued = 0} end
  if not create_item(one, target, payload, options, now) then
    tally.skipped = tally.skipped + 1
  elseif is_in_time then
    tally.new = tally.new + 1
  else
    redis.call('HINCRBY', counters, 'enqueued', 1)
    bury_member(one, 0, too_often(read.most_hops), now, config)
    tally.dead = tally.dead + 1
  end
end

-- Returns the number of applied rows, and the name of the target queue if it is full and stopped the call.
local function apply_rows(words, read, now, config)
  local ids, all_options, new = {}, {}, {}
  for at = 1, #words, 4 do
    local n, options = #ids + 1, read_options(words[at + 3])
    ids[n], all_options[n] = options.new and options.parent or words[at], options
    if options.new then new[#new + 1] = words[at] end
  end
  check_ids(new)
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    local at, options = 4 * n - 3, all_options[n]
    local one, to = words[at], words[at + 1]
    local target = to ~= '' and target_queue(to)
    if target and target.capacity < 1 and not options.over then return n - 1, to end
    if options.new and (is_live and not has_left[ids[n]] or not options.parent) then
      apply_new(one, target, words[at + 2], options, read, now, config)
    elseif is_live and not has_left[one] and not options.new then
      apply_to_member(one, target, words[at + 2], options, read, now, config)
    else
      tally.skipped = tally.skipped + 1
    end
  end
  return #ids
end

-- Returns members to their positions in the queue; no attempt is spent. `unbegun`: no function has processed them, so
-- the tokens of the queue's rate are refunded.
local function return_to_queue(ids, unbegun, now)
  local places, unbegun_of = {}, {}
  for _, one in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. one, 'id', 'place', 'key')
    if task.err or not task[1] then
      drop_damaged(one)
    else
      places[#places + 1], places[#places + 2] = number(task[2]) or now, one
      if task[3] then unbegun_of[task[3]] = (unbegun_of[task[3]] or 0) + 1 end
    end
  end
  add_waiting(waiting, places)
  if unbegun then refund(string.sub(waiting, 1, -8), #places / 2, unbegun_of, now) end
  if #places > 0 then notify_worker(wake) end
end

-- Ends up to `count` members that no row names, from position `swept` on, with the outcome in the decision. Returns the
-- position after the last of them.
local function end_unnamed_members(read, swept, count, now, config)
  local size, first = tonumber(read.size), tonumber(read.first)
  local behind = math.min(swept + count, size)
  local ids = redis.call('LRANGE', batch_key(read.list) .. ':members', first + swept, first + behind - 1)
  if #ids < behind - swept then behind = size end  -- damage: no more members than the list has
  local unnamed = {}
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    if is_live then unnamed[#unnamed + 1] = ids[n] end
  end
  if read.rest == 'back' then
    return_to_queue(unnamed, read.unbegun, now)
  elseif read.rest == 'dead' then
    for _, one in ipairs(unnamed) do bury_member(one, read.tries, read.error, now, config) end
    tally.dead = tally.dead + #unnamed
  else
    end_members(unnamed, read.rest, now)
  end
  if read.rest ~= 'dead' then tally.ended = tally.ended + #unnamed end
  call_sliced('ZREM', pending, unnamed)
  free_partitions(unnamed)
  call_sliced('ZREM', leases, unnamed)
  redis.call('HSET', batch, 'swept', behind)
  return behind
end

-- The hash of a batch that is done stays for a while, for writers that repeat a call with its id.
local DONE_KEEP_MS, NAMED_KEEP_MS = 86400000, 2592000000

-- Returns false while more staged rows have to be deleted.
local function finish_batch(read)
  if clear_staged() then return false end
  local root, users = batch_key(read.list), 0
  if redis.call('HEXISTS', root, 'users') == 1 then users = redis.call('HINCRBY', root, 'users', -1) end
  redis.call('UNLINK', batch .. ':manifest')
  redis.call('UNLINK', batch)
  redis.call('HSET', batch, 'state', 'done', 'queue', queue, 'epoch', read.epoch, 'decided', read.decided or '',
    'rows', read.rows or '')
  local keep_ms = (read.attempt or '') ~= '' and NAMED_KEEP_MS or DONE_KEEP_MS
  redis.call('PEXPIRE', batch, keep_ms)
  if users <= 0 then
    redis.call('UNLINK', root .. ':members')
    redis.call('PEXPIRE', root, keep_ms)
  end
  redis.call('ZREM', finishing, id)
  return true
end
