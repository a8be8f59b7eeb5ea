-- A call that was applied does nothing when it is sent again because its reply was lost: by then its tasks may be finished
-- and gone. So each call leaves a note, a string that expires; its value is the reply. (The idea is that of idempotent
-- producers in Kafka.)
local SENT_KEEP_MS = '10000'

local function note_known(note, known)
  redis.call('SET', note, table.concat(known, ' '), 'PX', SENT_KEEP_MS)
end

-- The positions that the call was answered before.
local function reply_before(note)
  local known = {}
  for position in string.gmatch(redis.call('GET', note) or '', '%d+') do known[#known + 1] = tonumber(position) end
  return known
end

-- 'exists' and the positions of hashes that exist, or that stand before in the list; nil when there are none.
local function positions_there(hashes)
  local found, seen = {'exists'}, {}
  for n, hash in ipairs(hashes) do
    if seen[hash] or redis.call('EXISTS', hash) == 1 then found[#found + 1] = n end
    seen[hash] = true
  end
  return found[2] and found
end

-- Nothing was added, so the call may be made anew.
local function take_back(note, reply)
  if note then redis.call('DEL', note) end
  return reply
end
