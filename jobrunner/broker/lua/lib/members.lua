-- A member has not left its batch while its newest lease has the number of the batch, and the hold on it has not ended.

-- Beside ids, whether each is such a member.
local function are_members(ids, given, now)
  local newest, live = scores_of(leases, ids), {}
  local some_ended = redis.call('ZCOUNT', pending, '-inf', exact(now)) > 0
  for n, held in ipairs(newest) do
    local is_newest = held and (held == given or tonumber(held) == tonumber(given))
    live[n] = is_newest and not (some_ended and has_ended(ids[n], now))
  end
  return live
end
