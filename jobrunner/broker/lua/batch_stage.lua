local batch, pending, leases = unpack(KEYS)
local now_ms, id, epoch, nonce, after = unpack(ARGV, 1, 5)
-- batch_stage: appends rows to a list of a batch, which nothing reads before the batch is decided.
-- KEYS  batch: hash · pending, leases: zsets
-- ARGV  now_ms: Unix ms or '' · id: of the batch · epoch: of its holder ·
--       nonce: of the writer, its own ·
--       after: how many rows that writer has staged before ('' = not said: then a repeated call appends twice)
--       then for each row: id, to, payload, more
-- reply {}, or {'lost'} (it has another holder, or is decided), {'unknown', id that is no member} (nothing changed)
-- Rows of members that have left meanwhile are accepted, and skipped when the batch is rolled forward.
-- include numbers task_end task_leases batch batch_rows

local LOOKUPS = 2
local now = read_clock(now_ms)
local read = read_batch()
if not (is_leased_as(read, epoch, now) and read.state == 'open') then return {'lost'} end

local ids, targets = {}, {}
for at = 6, #ARGV, 4 do
  if ARGV[at + 1] ~= '' then targets[ARGV[at + 1]] = true end
  if not read_options(ARGV[at + 3]).new then ids[#ids + 1] = ARGV[at] end
end
local lookups = 0
for n, is_live in ipairs(are_members(ids, read.number, now)) do
  if not is_live and lookups < LOOKUPS then
    local position = redis.call('LPOS', batch_key(read.list) .. ':members', ids[n])
    if not position then return {'unknown', ids[n]} end
    lookups = lookups + 1
  end
end

local rows = batch .. ':rows:' .. epoch .. '.' .. nonce
local count = (#ARGV - 5) / 4
local staged = redis.call('LLEN', rows) / 4
if after ~= '' and staged == after + count and count > 0 then return {} end
if after ~= '' and staged ~= tonumber(after) then return {'lost'} end
for at = 6, #ARGV, 4000 do redis.call('RPUSH', rows, unpack(ARGV, at, math.min(at + 3999, #ARGV))) end
redis.call('SADD', batch .. ':nonces', epoch .. '.' .. nonce)
for to in pairs(targets) do redis.call('HSET', batch, 't:' .. to, '') end
return {}
