-- On a cluster: a key that is on its way to another node is not taken for one that is damaged; the script ends there.
local redis = setmetatable({pcall = function(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'non local key', 1, true) then error(reply.err) end
  return reply
end}, {__index = redis})
