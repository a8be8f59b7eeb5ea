-- Back to their places in line, no attempt spent.
local function put_back(ids, now)
  local places = {}
  for _, one in ipairs(ids) do
    local task = redis.pcall('HMGET', tasks .. one, 'id', 'place')
    if task.err or not task[1] then
      drop(one)
    else
      places[#places + 1], places[#places + 2] = number(task[2]) or now, one
    end
  end
  line_up(waiting, places)
  if #places > 0 then wake_one(wake) end
end
