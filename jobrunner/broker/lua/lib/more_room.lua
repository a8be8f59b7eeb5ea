-- Who waited behind the one that was told of room has his turn now, if there is still some.
local function hint_more_room(settings, waiting, scheduled, wake)
  if not is_full(settings, waiting, scheduled, 1) then hint_room(wake) end
end
