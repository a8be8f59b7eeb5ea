-- Errors in groups: the failed attempts of a queue by job, class of the error, message and place in the code. The hash
-- of a group has its definition, its counts by ten minutes, and how many of its tasks are dead now; the index of the
-- groups has the ten minutes in which each was last seen. Nothing here fails a report: a damaged group counts nothing.
local BUCKET_MS, BUCKETS_KEPT = 600000, 144

-- A queue has at most MOST_GROUPS groups of their own; what is in none of them is in one group for each job, and beyond
-- MOST_OTHERS of these in one for all. A group without dead tasks leaves when it was not seen for GROUP_KEEP_MS.
local MOST_GROUPS, MOST_OTHERS, GROUP_KEEP_MS, SLICE_OF_GROUPS = 200, 100, 604800000, 20

local function key_of_groups() return string.sub(counters, 1, -9) .. 'errors' end

local function key_of_group(group) return key_of_groups() .. ':' .. group end

local function drop_old_groups(now)
  local index = key_of_groups()
  local old = redis.pcall('ZRANGEBYSCORE', index, '-inf', exact(now - GROUP_KEEP_MS), 'LIMIT', 0, SLICE_OF_GROUPS)
  for _, group in ipairs(old) do
    if (number(redis.call('HGET', key_of_group(group), 'dead')) or 0) <= 0 then
      redis.call('UNLINK', key_of_group(group))
      redis.call('ZREM', index, group)
    end
  end
end

-- Defines a group that was not known. Returns the group that counts, which is another one where there are too many.
local function define_group(group, definition, task, now)
  local known = redis.pcall('ZCARD', key_of_groups())
  if known == MOST_GROUPS then
    drop_old_groups(now)
    known = redis.pcall('ZCARD', key_of_groups())
  end
  if tonumber(known) and known >= MOST_GROUPS then
    redis.call('UNLINK', key_of_group(group))
    local job = string.match(definition, '^[^\n]*')
    group = 'other-' .. string.sub(redis.sha1hex(job), 1, 10)
    if known >= MOST_GROUPS + MOST_OTHERS and redis.call('EXISTS', key_of_group(group)) == 0 then
      job, group = '', 'other'
    end
    definition = job .. '\n\n\n\n'
    if redis.pcall('HSET', key_of_group(group), 'last', exact(now), 'task', task) ~= 2 then return group end
  end
  redis.pcall('HSET', key_of_group(group), 'definition', definition, 'first', exact(now))
  redis.pcall('ZADD', key_of_groups(), exact(now), group)
  return group
end

local counted_as = {}

-- Notes that a group was seen, with a task as an example, once for each call. Returns the group that counts.
local function see_group(group, definition, task, now)
  if counted_as[group] then return counted_as[group] end
  local as = group
  if redis.pcall('HSET', key_of_group(group), 'last', exact(now), 'task', task) == 2 then
    as = define_group(group, definition, task, now)
  end
  counted_as[group] = as
  return as
end

-- A group that the server itself defines: of attempts that no worker reported, and of tasks that die without one.
-- `reason` begins with the class of the error, where `class` is nil.
local function see_own_group(type, class, reason, task, now)
  local first = string.match(reason, '^[^\n]*')
  if not class then
    local named, rest = string.match(first, '^([%w_.]+): (.*)$')
    class, first = named or '', rest or first
  end
  local message = string.gsub(string.sub(first, 1, 200), '%d+', '#')
  local definition = (type or '') .. '\n' .. class .. '\n' .. message .. '\n'
  return see_group(string.sub(redis.sha1hex(definition), 1, 10), definition .. '\n', task, now)
end

-- Counts begin anew every ten minutes. Those of more than a day ago are added up.
local function begin_bucket(group, bucket, now)
  local key, before, old = key_of_group(group), 0, {}
  redis.pcall('ZADD', key_of_groups(), exact(now), group)
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local number_of = number(fields[at])
    if number_of and number_of <= bucket - BUCKETS_KEPT then
      before, old[#old + 1] = before + (number(fields[at + 1]) or 0), fields[at]
    end
  end
  if #old == 0 then return end
  redis.call('HINCRBY', key, 'before', before)
  redis.call('HDEL', key, unpack(old))
end

-- Counts so many failed attempts of a group.
local function count_in_group(group, many, now)
  local bucket = math.floor(now / BUCKET_MS)
  if redis.pcall('HINCRBY', key_of_group(group), bucket, many) == many then begin_bucket(group, bucket, now) end
end

-- Takes a task that leaves `dead` off the count of its group. `group` is the field of its hash.
local function leave_group(group)
  if group and redis.pcall('HEXISTS', key_of_group(group), 'dead') == 1 then
    redis.pcall('HINCRBY', key_of_group(group), 'dead', -1)
  end
end
