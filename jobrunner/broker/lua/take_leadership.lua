local leader, epoch, version = unpack(KEYS)
local now_ms, worker, ttl_ms, resign = unpack(ARGV)
-- take_leadership: takes or renews leadership; each new leader gets a new, higher epoch (the fencing number), also when
--       the server has lost these keys.
-- KEYS  leader: hash {worker, epoch, ttl_ms} · epoch, version: strings, the latter counts changes of periodic jobs
-- ARGV  now_ms: Unix ms or '' · worker: id of the caller · ttl_ms: how long it lasts · resign: '1' gives it up
-- reply {now (Unix ms), epoch when the caller leads, else 0, ms until the lock of the leader ends, version}
-- Works on a server that is full: the leader's maintenance frees memory.
-- include numbers

local now = exact(read_clock(now_ms))
local changes = tonumber(redis.call('GET', version)) or 0
local held = redis.call('HMGET', leader, 'worker', 'epoch', 'ttl_ms')
local left = redis.call('PTTL', leader)
-- A lock without an end is damage: no worker could ever take it. A lock that lasts longer than its own TTL was set by a
-- clock that was ahead and stepped back: a leader that died before a renewal would be replaced that much later.
local is_ahead = held[1] ~= worker and left > 2 * (tonumber(held[3]) or math.huge)
if held[1] and (left < 0 or is_ahead) then held = {} end

if held[1] == worker then
  if resign == '1' then
    redis.call('DEL', leader)
    return {now, 0, 0, changes}
  end
  redis.call('PEXPIRE', leader, ttl_ms)
  if held[3] ~= ttl_ms then redis.call('HSET', leader, 'ttl_ms', ttl_ms) end
  return {now, tonumber(held[2]) or 0, tonumber(ttl_ms), changes}
end
if held[1] or resign == '1' then return {now, 0, math.max(left, 0), changes} end
redis.call('DEL', leader) -- a write that frees comes first
-- Periodic jobs on other nodes of a cluster note the epoch of their last leader. A node that loses its data loses the
-- last epoch, and epochs that began anew at 1 would be older than those. The time is newer than all before it.
local taken = math.max((number(redis.call('GET', epoch)) or 0) + 1, math.floor(now))
redis.call('SET', epoch, exact(taken))
redis.call('HSET', leader, 'worker', worker, 'epoch', exact(taken), 'ttl_ms', ttl_ms)
redis.call('PEXPIRE', leader, ttl_ms)
return {now, taken, tonumber(ttl_ms), changes}
