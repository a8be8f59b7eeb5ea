-- Errors in groups: the failed attempts of a queue by job, class of the error, message and place in the code. The hash
-- of a group has its definition, its counts by half hour, and how many of its tasks are dead now; the index of the
-- groups has the half hour in which each was last seen. Nothing here fails a report: a damaged group counts nothing.
local BUCKET_MS, BUCKETS_KEPT = 1800000, 48

-- A queue has at most MOST_GROUPS specific groups; further errors are in one group for each job, and beyond MOST_OTHERS
-- of these in one for all jobs. A group without dead tasks is removed when it was not seen for GROUP_KEEP_MS.
local MOST_GROUPS, MOST_OTHERS, GROUP_KEEP_MS, SLICE_OF_GROUPS = 200, 100, 604800000, 20

local function key_of_groups() return string.sub(counters, 1, -9) .. 'errors' end

local function key_of_group(group) return key_of_groups() .. ':' .. group end

-- Examines a slice of the groups, a different one each second: groups with dead tasks stay, and must not block the
-- removal of others.
local function drop_old_groups(now)
  local index, before = key_of_groups(), exact(now - GROUP_KEEP_MS)
  local count = tonumber(redis.pcall('ZCOUNT', index, '-inf', before)) or 0
  local first = count > SLICE_OF_GROUPS and math.floor(now / 1000) * SLICE_OF_GROUPS % count or 0
  local old = redis.pcall('ZRANGEBYSCORE', index, '-inf', before, 'LIMIT', first, SLICE_OF_GROUPS)
  for _, group in ipairs(old) do
    if (number(redis.call('HGET', key_of_group(group), 'dead')) or 0) <= 0 then
      redis.call('UNLINK', key_of_group(group))
      redis.call('ZREM', index, group)
    end
  end
end

-- The group that counts errors without a specific group: that of the job, or of all jobs.
local function other_group(definition, known)
  local job = string.match(definition, '^[^\n]*')
  local group = 'other-' .. string.sub(redis.sha1hex(job), 1, 10)
  if known >= MOST_GROUPS + MOST_OTHERS and redis.call('EXISTS', key_of_group(group)) == 0 then return 'other', '' end
  return group, job
end

-- Adds up the counts of more than a day ago.
local function add_up_old(key, bucket)
  local before, old = 0, {}
  local fields = redis.pcall('HGETALL', key)
  for at = 1, #fields, 2 do
    local number_of = number(fields[at])
    if number_of and number_of <= tonumber(bucket) - BUCKETS_KEPT then
      before, old[#old + 1] = before + (number(fields[at + 1]) or 0), fields[at]
    end
  end
  if #old == 0 then return end
  redis.call('HINCRBY', key, 'before', before)
  redis.call('HDEL', key, unpack(old))
end

-- Begins to count a group in this half hour, and defines a new group. Returns the group that counts, which is another
-- one when there are too many.
local function begin_bucket(group, definition, bucket, many, task, now)
  local index, is_known = key_of_groups(), redis.pcall('HEXISTS', key_of_group(group), 'definition') == 1
  local known = is_known and 0 or tonumber(redis.pcall('ZCARD', index)) or 0
  if known >= MOST_GROUPS then
    drop_old_groups(now)
    known = redis.call('ZCARD', index)
  end
  if known >= MOST_GROUPS then
    redis.call('UNLINK', key_of_group(group))
    local other, job = other_group(definition, known)
    group, definition = other, job .. '\n\n\n\n'
    redis.pcall('HINCRBY', key_of_group(group), bucket, many)
    is_known = redis.pcall('HEXISTS', key_of_group(group), 'definition') == 1
  end
  local key, at = key_of_group(group), exact(now)
  if not is_known then redis.pcall('HSET', key, 'definition', definition, 'first', at) end
  redis.pcall('HSET', key, 'last', at, 'task', task)
  redis.pcall('ZADD', index, at, group)
  add_up_old(key, bucket)
  return group
end

local counted_as = {}

-- Counts all failed attempts of a group in this call. Returns the group that counts. `is_noted`: also stores the time,
-- and a task as an example. A later task of the call is counted with the first.
local function count_in_group(group, definition, many, task, now, is_noted)
  local as = counted_as[group]
  if as then return as end
  -- As text, because the server converts numbers by a slow path.
  local bucket = string.format('%d', now / BUCKET_MS)
  as = group
  if redis.pcall('HINCRBY', key_of_group(group), bucket, many == 1 and '1' or many) == many then
    as = begin_bucket(group, definition, bucket, many, task, now)
  elseif is_noted then
    redis.pcall('HSET', key_of_group(group), 'last', exact(now), 'task', task)
  end
  counted_as[group] = as
  return as
end

-- Counts tasks of a group that are dead now.
local function count_dead(group, many)
  redis.pcall('HINCRBY', key_of_group(group), 'dead', many == 1 and '1' or many)
end

local UUID = string.rep('%x', 8) .. string.rep('%-%x%x%x%x', 3) .. '%-' .. string.rep('%x', 12)

local function without_id(word)
  return #word > 7 and (string.find(word, '%d') or not string.find(word, '%X')) and '#' or nil
end

-- A message without parts that differ from task to task, as `normalized` in jobrunner/error_groups.py. An apostrophe
-- within a word is no quote.
local function normalized(message)
  local text = string.gsub(' ' .. string.sub(message, 1, 400), '([%w_])\39%f[%w_]', '%1\1')
  text = string.gsub(text, '([^%w_])([\34\39`]).-%2', '%1%2…%2')
  text = string.gsub(string.gsub(text, UUID, '#'), '[%w_]+', without_id)
  text = string.gsub(string.gsub(text, '%d+', '#'), '#[%-#.,:/+TZ]*#Z?', '#')
  text = string.gsub(string.gsub(text, '\1', '\39'), '%s+', ' ')
  return string.sub(string.gsub(text, '^ ', ''), 1, 200)
end

-- Counts one failure in a group that the server itself defines: of attempts that no worker reported, and of tasks that
-- die without an attempt. `reason` begins with the class of the error, where `class` is nil. Returns the group that
-- counts.
local function count_unreported(type, class, reason, task, now)
  local first = string.match(reason, '^[^\n]*')
  if not class then
    local named, rest = string.match(first, '^([%w_.]+): (.*)$')
    class, first = named or '', rest or first
  end
  local message = normalized(first)
  local definition = (type or '') .. '\n' .. class .. '\n' .. message .. '\n'
  local group = string.sub(redis.sha1hex(definition), 1, 10)
  counted_as[group] = nil
  return count_in_group(group, definition .. '\n', 1, task, now, true)
end

-- Subtracts a task that leaves `dead` from the count of its group. `group` is the field of its hash.
local function leave_group(group)
  if group and redis.pcall('HEXISTS', key_of_group(group), 'dead') == 1 then
    redis.pcall('HINCRBY', key_of_group(group), 'dead', -1)
  end
end
