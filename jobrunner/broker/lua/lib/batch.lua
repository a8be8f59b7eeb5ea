-- Calls a command with any number of trailing arguments, in slices that fit Lua's stack.
local function call_sliced(command, key, args)
  for first = 1, #args, 4000 do
    redis.call(command, key, unpack(args, first, math.min(first + 3999, #args)))
  end
end
