local first = unpack(KEYS)
local now_ms, queue, type = unpack(ARGV)
-- stats_read: reads statistics of some minutes or hours: all of them or those of one queue, of one job, or of both.
-- KEYS  first: hash field → number · then more of these
-- ARGV  now_ms: unused · queue: full name, '' = all · type: name of a job, '' = all
-- reply a list, for each key: lists of field, number, ...; '#sampled' where the leader sampled. With all queues and
--       jobs also the fields of writers, whose names have no blanks: to sort them out here would cost most of the time.
--       With a queue the fields of all its shards: the leader samples each of them under its own name.
-- Fields of the leader's samples are of type '-': they are of every job.

local function is_of_queue(name)
  return queue == '' or name == queue or string.find(name, '@', 1, true) and string.gsub(name, '@%d+', '', 1) == queue
end

local function is_wanted(field)
  local of, job = string.match(field, '^(%S*) (.*) %S+$')
  if not of then return field == '#sampled' end
  return is_of_queue(of) and (type == '' or job == type or job == '-')
end

local reply = {}
for n, key in ipairs({first, unpack(KEYS, 2)}) do
  local found, wanted = redis.call('HGETALL', key), {}
  if queue == '' and type == '' then found, wanted = {}, found end
  for at = 1, #found, 2 do
    if is_wanted(found[at]) then
      wanted[#wanted + 1], wanted[#wanted + 2] = found[at], found[at + 1]
    end
  end
  reply[n] = wanted
end
return reply
