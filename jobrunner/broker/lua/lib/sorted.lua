-- A queue that rotates among keys, or limits each, hands its tasks out by key: there is one line for each key and
-- priority (`partition:<band>:<key>`), and keys take turns (`rotation:<band>`, key → number of its last turn). A task
-- goes to the line of its key when it comes to wait, and stays in `waiting`, its score behind all places. A task that
-- is taken out of `waiting` leaves a stale entry here, which is dropped when a call meets it.
-- A key that may have no more now is in `blocked` in place of a rotation: see rooms.lua.

local function line_of(own, band, key) return own .. 'partition:' .. band .. ':' .. key end
local function rotation_of(own, band) return own .. 'rotation:' .. band end
local function band_of(place) return math.max(-1, math.min(math.floor(place / BAND), 1)) end

local function key_of(id)
  local key = redis.pcall('HGET', tasks .. id, 'key')
  return key and not key.err and key or ''
end

local goes_so = {}
-- Whether what comes to wait there is sorted by key: false, or the limits of single keys and the last turn.
local function goes_by_key(own)
  if goes_so[own] == nil then
    local set = redis.call('HMGET', own .. 'settings', 'fair', 'key_inflight', 'key_tokens', 'rotation_seq')
    goes_so[own] = (set[1] or set[2] or set[3]) and {inflight = set[2], tokens = set[3], rotation_seq = set[4]} or false
  end
  return goes_so[own]
end

-- Puts keys into a rotation. Those that hold all they may are blocked: a hand-out would have to look at each of them.
local function join_ring(own, band, keys, set)
  local most, turn = number(set.inflight), set.rotation_seq or 0
  local blocked = (most or set.tokens) and redis.call('ZMSCORE', own .. 'blocked', unpack(keys)) or {}
  local held, entries, full = most and redis.call('HMGET', own .. 'inflight', unpack(keys)) or {}, {}, {}
  for n, key in ipairs(keys) do
    local is_full = most and key ~= '' and (tonumber(held[n]) or 0) >= most
    local into, score = is_full and full or entries, is_full and FAR or turn
    if not blocked[n] then into[#into + 1], into[#into + 2] = score, key end
  end
  if #entries > 0 then redis.call('ZADD', rotation_of(own, band), 'NX', unpack(entries)) end
  call_sliced('ZADD', own .. 'blocked', full)
end

-- Puts tasks, given as place, id, ..., into the lines of their keys; `own` is what the keys of the queue begin with,
-- `set` as of goes_by_key. `keys`: beside the tasks, where the caller knows them.
local function park(own, places, set, keys)
  local lines, parked = {}, {}
  for n = 1, #places / 2 do
    local place, id = math.min(tonumber(places[2 * n - 1]), UNSORTED - 1), places[2 * n]
    local key, band = keys and keys[n] or key_of(id), band_of(place)
    lines[band] = lines[band] or {}
    local entries = lines[band][key] or {}
    entries[#entries + 1], entries[#entries + 2], lines[band][key] = place, id, entries
    parked[2 * n - 1], parked[2 * n] = PARKED + place, id
  end
  for band, of_band in pairs(lines) do
    local all = {}
    for key, entries in pairs(of_band) do
      all[#all + 1] = key
      call_sliced('ZADD', line_of(own, band, key), entries)
    end
    for first = 1, #all, 1000 do join_ring(own, band, {unpack(all, first, math.min(first + 999, #all))}, set) end
  end
  call_sliced('ZADD', own .. 'waiting', parked)
end

-- Puts tasks in line, given as place, id, ... Each way into `waiting` ends here. `by_key` says whether the queue goes
-- by key: as of goes_by_key, or true when no more is known, nil where the caller has not read that.
local function line_up(waiting, places, by_key)
  if #places == 0 then return end
  local own = string.sub(waiting, 1, -8)
  if by_key == nil or by_key == true then by_key = goes_by_key(own) end
  if by_key then park(own, places, by_key) else call_sliced('ZADD', waiting, places) end
end
