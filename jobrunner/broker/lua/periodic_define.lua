local periodics, seen, version, deployed = unpack(KEYS)
local now_ms, ttl_ms = unpack(ARGV, 1, 2)
-- periodic_define: a worker publishes the periodic jobs that it knows, with the time when it did so.
-- KEYS  periodics: hash name → definition · seen: zset name → Unix ms · version: string, counts changes ·
--       deployed: hash name → of its definitions, in the order in which they were first published: digest and when it
--       was published last (Unix ms), with blanks between all
-- ARGV  now_ms: Unix ms or '' · ttl_ms: how long they count as published, no less than FORGOTTEN_MS · then name,
--       definition, digest of it (hexadecimal), ...
-- reply how many were new, changed, or known again after a while
-- While workers publish several definitions of one job, as during a deploy, the newest one is in force; when no worker
-- has published that for a while, because it was rolled back, the one before it is in force again.
-- Works on a server that is full: a worker that starts there makes room. Its first write frees nothing.
-- include numbers

-- After this time a definition no longer counts as published. A worker that publishes less often stores a later time.
local FORGOTTEN_MS = 30000 -- less than the time after which a leader fires the job no more
local DEPLOYED_KEEP_MS = 86400000
local DEPLOYED_MOST = 16 -- of one job; every heartbeat reads them

-- Notes that a definition was published; returns whether a newer one is still being published.
local function is_outdated(name, digest, now, noted)
  local kept, own, newer = {}, nil, false
  for known, at in string.gmatch(redis.call('HGET', deployed, name) or '', '(%x+) (%d+)') do
    if known == digest then
      own, at = true, noted
    else
      newer = newer or own and now - at <= FORGOTTEN_MS
    end
    if now - at <= DEPLOYED_KEEP_MS then kept[#kept + 1] = known .. ' ' .. at end
  end
  if not own then kept[#kept + 1] = digest .. ' ' .. noted end
  redis.call('HSET', deployed, name, table.concat(kept, ' ', math.max(#kept - DEPLOYED_MOST + 1, 1)))
  return newer
end

local now = read_clock(now_ms)
local published = now + math.max(tonumber(ttl_ms) - FORGOTTEN_MS, 0)
local changed = 0
redis.call('ZREM', seen, '')
for i = 3, #ARGV, 3 do
  local name, definition = ARGV[i], ARGV[i + 1]
  local last_seen = tonumber(redis.call('ZSCORE', seen, name) or 0)
  local is_changed = not is_outdated(name, ARGV[i + 2], now, exact(math.floor(published)))
    and redis.call('HGET', periodics, name) ~= definition
  if is_changed then redis.call('HSET', periodics, name, definition) end
  if is_changed or now - last_seen > FORGOTTEN_MS then changed = changed + 1 end
  redis.call('ZADD', seen, exact(published), name)
end
if changed > 0 then redis.call('INCR', version) end
return changed
