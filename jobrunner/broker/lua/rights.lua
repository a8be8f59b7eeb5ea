local waiting = unpack(KEYS)
local now_ms = unpack(ARGV, 1, 1)
-- rights: which commands the user of this call may not run. Runs none of them, and changes nothing.
-- KEYS  waiting: zset
-- ARGV  now_ms: unused · then for each command count of words, its words (waiting: unused, but the user needs it)
-- reply the positions (1 = first) of the commands that the user may not run, or that the server does not know;
--       none from a server before Redis 7, which cannot be asked
-- A script that is denied a command ends there: what it wrote before stays, and the rest is not done.

local denied, place, at = {}, 0, 2
local check = redis.acl_check_cmd
while check and ARGV[at] do
  place = place + 1
  local is_known, may_run = pcall(check, unpack(ARGV, at + 1, at + ARGV[at]))
  if not (is_known and may_run) then denied[#denied + 1] = place end
  at = at + ARGV[at] + 1
end
return denied
