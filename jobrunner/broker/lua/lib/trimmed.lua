-- Remembers the time of the newest entry of history that was deleted.
local function note_trimmed(settings, newest)
  local known = number(redis.call('HGET', settings, 'history_trimmed'))
  if newest and not (known and known >= tonumber(newest)) then
    redis.call('HSET', settings, 'history_trimmed', newest)
  end
end
