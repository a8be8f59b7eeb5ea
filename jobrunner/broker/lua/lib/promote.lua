-- scheduled → waiting, what is due, to its place in line. Each task promoted may touch memory that the server touches
-- for the first time, which is dear: a call promotes few, but who wants many promotes as many, as a line would give.
local PROMOTED_SLICE = 100

local function promoted_at_most(wanted)
  return wanted and wanted > PROMOTED_SLICE and math.min(wanted, SLICE) or PROMOTED_SLICE
end

-- Returns how many, and how many at most it would have been.
local function promote(now, wanted, by_key)
  local most = promoted_at_most(wanted)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', exact(last_slot_at(now)), 'WITHSCORES', 'LIMIT', 0, most)
  if #due == 0 then return 0, most end
  local places, ids = {}, {}
  for i = 1, #due, 2 do
    local place = redis.pcall('HGET', tasks .. due[i], 'place')
    places[i], places[i + 1] = number(place) or tonumber(due[i + 1]), due[i]
    ids[#ids + 1] = due[i]
  end
  write_even_when_full()
  line_up(waiting, places, by_key)
  redis.call('ZREM', scheduled, unpack(ids))
  return #ids, most
end
