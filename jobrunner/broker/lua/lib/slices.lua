-- Slices: the part of `max_inflight` and `rate` that one shard of a queue with `partitions` may use. Its settings hold
-- `slice_inflight`, `slice_tokens`, `slice_generation` (each division of the limits has the next number) and
-- `slice_hold`: a lower limit than the slice, until enough leases have ended to give the rest away. `transfers`, a
-- hash, holds what one generation moves: `>shard` a gift that may not have arrived yet (number, leases, tokens, level
-- of the bucket, interval), `<shard` the number of the last gift from that shard, `gifts` the last number given,
-- `entered` the slices with which the generation began here. Includers include `numbers` first.
local function read_slices()
  local set = redis.call('HMGET', settings, 'slice_generation', 'slice_inflight', 'slice_tokens', 'interval_us')
  return {generation = number(set[1]) or 0, inflight = number(set[2]), tokens = number(set[3]),
    interval = number(set[4])}
end

-- Begins a generation: gifts under way in the last one are void, as receivers refuse gifts of another generation.
-- `ARGV` holds fields and values of other settings from `first` on. Returns the slices.
local function begin_generation(generation, inflight, tokens, first)
  local words = {'slice_generation', generation, 'slice_inflight', inflight, 'slice_tokens', tokens, 'slice_hold', ''}
  for i = first, #ARGV do words[#words + 1] = ARGV[i] end
  redis.call('UNLINK', transfers)
  redis.call('HSET', transfers, 'entered', inflight .. ' ' .. tokens)
  change_settings(settings, wake, words, 1, now_ms)
  return {inflight, tokens}
end

-- Returns the slices for a repeated call. Other calls may have given or received since.
local function begun_before()
  return {string.match(redis.call('HGET', transfers, 'entered') or ' ', '^(%d*) (%d*)$')}
end
