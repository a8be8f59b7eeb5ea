-- An applied enqueue changes nothing when the client repeats it after a lost reply. By then its tasks may be finished
-- and deleted, so their ids cannot show that. Each call leaves a note, a string that expires, whose value is the reply.
-- (The idea is that of idempotent producers in Kafka.)
local SENT_KEEP_MS = '10000'

local function note_reply(note, known)
  redis.call('SET', note, table.concat(known, ' '), 'PX', SENT_KEEP_MS)
end

-- Reads the reply of a call that was applied before.
local function earlier_reply(note)
  local known = {}
  for position in string.gmatch(redis.call('GET', note) or '', '%d+') do known[#known + 1] = tonumber(position) end
  return known
end

-- Returns 'exists' and the positions of hashes that exist or are repeated in the list; nil without any.
local function existing_positions(hashes)
  local found, seen = {'exists'}, {}
  for n, hash in ipairs(hashes) do
    if seen[hash] or redis.call('EXISTS', hash) == 1 then found[#found + 1] = n end
    seen[hash] = true
  end
  return found[2] and found
end

-- Whether a task whose lease has expired becomes dead or cancelled as soon as a reserve recovers it.
local function never_runs_again(prefix, cancel_requested, retry_count, max_attempts, expiries, max_stalled)
  if cancel_requested then return true end
  local limit = number(max_attempts or redis.call('HGET', prefix .. 'settings', 'max_attempts')) or DEFAULT_MAX_ATTEMPTS
  return is_spent((number(retry_count) or 0) + 1, limit)
    or is_spent((number(expiries) or 0) + 1, number(max_stalled) or limit)
end

-- Returns the holder of a lock: the prefix of the keys of its queue, its state, and fields of its hash: full name of
-- its queue, retry_count, expires_in_ms, enqueue_time, and as the ninth hops: an item that a station passed on has
-- begun. Returns nothing when its state holds no lock; when it has not this lock, as it is in a dead letter queue or a
-- later task with the same id; when it was asked to stop and released, as the next reserve cancels it; and when it does
-- not survive the end of its lease, even before a reserve has recovered it.
local function place_of_holder(holder, lock, now)
  local task = redis.pcall('HMGET', tasks .. holder, 'queue', 'retry_count', 'expires_in_ms', 'enqueue_time',
    'cancel_requested', 'max_attempts', 'expiries', 'max_stalled', 'hops', 'lock')
  if task.err or not task[1] or task[10] ~= string.match(lock, '[^:]*$') then return end
  local name, cancelled = task[1], task[5]
  if string.sub(name, 1, #tag + 1) == tag .. '/' then name = string.sub(name, #tag + 2) end
  local prefix = base .. name .. ':'
  for _, state in ipairs(cancelled and {'pending'} or {'waiting', 'scheduled', 'pending'}) do
    local score = redis.call('ZSCORE', prefix .. state, holder)
    local is_over = score and state == 'pending' and tonumber(score) <= now
      and never_runs_again(prefix, cancelled, task[2], unpack(task, 6, 8))
    if score and not is_over then return prefix, state, task end
  end
end

-- The time to start of a task, ms: its own option, else that of its queue; nil: unlimited.
local function time_to_start(prefix, own)
  return number(own or redis.call('HGET', prefix .. 'settings', 'expires_in_ms'))
end

-- Whether a task that has not begun has expired, by the rule of `is_unfit` for tasks to hand out.
local function has_expired(prefix, task, now)
  local limit, since = time_to_start(prefix, task[3]), number(task[4])
  return limit and since and since + limit <= now
end

-- The value of a field among the words `field, value, ...` from position `at` on; nil when it is not among them.
local function task_field(at, name)
  for n = at, #ARGV, 2 do
    if ARGV[n] == name then return ARGV[n + 1] end
  end
end

-- Deletes the note of a call that added nothing, so that the call may be repeated.
local function withdraw_note(note, reply)
  if note then redis.call('DEL', note) end
  return reply
end

-- Reads the tasks of an enqueue from `args`, from position `first` on. Returns the keys of their hashes, the number of
-- each task's own arguments, and the number of tasks.
local function read_tasks(args, first)
  local keys, counts, total, at = {}, {}, 0, first
  while args[at] do
    total = total + 1
    keys[total] = tasks .. args[at]
    counts[total] = args[at + 2] == '' and 0 or tonumber(string.match(args[at + 2], '%d+$'))
    at = at + 3 + counts[total]
  end
  return keys, counts, total
end

-- Adds the only task of an enqueue, which is due at once, to `waiting`, and writes its hash: last, as an id whose hash
-- exists cannot be enqueued.
local function add_one(first, id, now, place)
  if partitioning then
    local partition = ARGV[first - 2] == 'key' and ARGV[first - 1] or ''
    add_to_partition(string.sub(waiting, 1, -8), place, id, partition, partitioning)
  else
    redis.call('ZADD', waiting, place, id)
  end
  redis.call('HSET', tasks .. id, 'id', id, 'place', place, 'payload', ARGV[first + 1], 'enqueue_time', now,
    'retry_count', '0', unpack(ARGV, 6, first - 1))
end

-- Writes the hashes of all tasks and adds those that are due later to `scheduled`. Returns the positions of tasks that
-- exist already; place, id, ... of tasks to add to `waiting`, and their partitions; the number of added tasks; and the
-- last arrival. Returns only the reason when the call is refused.
local function add_tasks(first, now, last, capacity)
  check_sets(waiting, scheduled)
  local args = ARGV  -- a local is read faster than a global
  local keys, counts, total = read_tasks(args, first)
  local old, written = count_existing(keys), {}
  local refused = clash == 'raise' and existing_positions(keys)
    or total - old > capacity and total > old and full_reply(settings)
  if refused then return refused end
  local words = {'HSET', '', 'id', '', 'place', 0, 'payload', '', 'enqueue_time', now, 'retry_count', '0',
    unpack(args, 6, first - 1)}
  local fixed, shared_partition = #words, args[first - 2] == 'key' and args[first - 1] or ''
  -- `more` makes a reserve read the whole hash: the worker needs the due time of a delayed task.
  local function write(key, at, own_words, place, is_later)
    words[2], words[4], words[6], words[8] = key, args[at], place, args[at + 1]
    for n = 1, own_words do words[fixed + n] = args[at + 2 + n] end
    if is_later then
      words[fixed + own_words + 1], words[fixed + own_words + 2], own_words = 'more', 1, own_words + 2
    end
    redis.call(unpack(words, 1, fixed + own_words))
    written[key] = true
  end
  local known, ready, partitions, size, later, at = {}, {}, {}, 0, 0, first
  for position = 1, total do
    local key, own_words, id, priority, due = keys[position], counts[position], args[at], '', now
    if args[at + 2] ~= '' then
      priority, due = string.match(args[at + 2], '^(%S*) (%S*)')
      due = read_due(due, now)
    end
    if written[key] or old > 0 and redis.call('EXISTS', key) == 1 then
      known[#known + 1] = position
    elseif due > now then
      due = slot_at(scheduled, due)
      write(key, at, own_words, place_of(priority, due), true)
      redis.call('ZADD', scheduled, due, id)
      later = later + 1
    else
      last, size = arrival_after(last, now), size + 1
      ready[2 * size - 1], ready[2 * size] = place_of(priority, last), id
      local own_partition = partitioning and own_words > 0 and args[at + 1 + own_words] == 'key'
        and args[at + 2 + own_words]
      partitions[size] = own_partition or shared_partition
      write(key, at, own_words, ready[2 * size - 1])
    end
    at = at + 3 + own_words
  end
  return known, ready, partitions, size + later, last
end
