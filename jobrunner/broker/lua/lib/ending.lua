local AWAITED_KEEP_MS = '5000'

-- Ends a task: its hash is kept for a while with how it ended. Returns whether it is to be deleted at once instead.
local function end_one(id, keep_ms, outcome, result, ended, someone_waits, is_usual)
  if someone_waits and tell_waiting(id, outcome) and keep_ms == '0' then keep_ms = AWAITED_KEEP_MS end
  if keep_ms == '0' then return true end
  local key = tasks .. id
  if redis.call('PEXPIRE', key, keep_ms) == 0 or is_usual then return false end
  if outcome == 'succeeded' and result == '' then
    redis.pcall('HSET', key, 'finished_at', ended)
  else
    redis.pcall('HSET', key, 'finished_at', ended, 'outcome', outcome, 'result', result)
  end
  return false
end
