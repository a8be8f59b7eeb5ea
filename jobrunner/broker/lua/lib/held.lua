-- A batch: a hash with its state, a list of members that halves of a split batch share by range, a list for the rows of
-- each nonce. `batch` is the key of its hash, `id` its id; all other keys are named after them. What a holder writes
-- counts only under the newest epoch, before its lease has ended, and while nothing is decided.
local STAGED_SLICE = 500

local function read_batch()
  local read, words = {}, redis.call('HGETALL', batch)
  for i = 1, #words, 2 do read[words[i]] = words[i + 1] end
  return read
end

local function is_held(read, epoch, now)
  return read.epoch == epoch and (number(read.ends) or 0) > now
end

local function hash_of(other) return string.sub(batch, 1, -#id - 1) .. other end

-- The names of the queues that its rows go to.
local function targets_of(read)
  local targets = {}
  for field in pairs(read) do
    if string.sub(field, 1, 2) == 't:' then targets[#targets + 1] = string.sub(field, 3) end
  end
  return targets
end

-- Removes a bounded slice of what was staged. Returns whether there is more.
local function clear_staged()
  local nonces = redis.call('SPOP', batch .. ':nonces', STAGED_SLICE)
  for n, nonce in ipairs(nonces) do nonces[n] = batch .. ':rows:' .. nonce end
  if #nonces > 0 then redis.call('UNLINK', unpack(nonces)) end
  return #nonces == STAGED_SLICE
end
