-- On a cluster, an error for a key that migrates to another node ends the script: it must not pass for a damaged key.
local redis = setmetatable({pcall = function(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'non local key', 1, true) then error(reply.err) end
  return reply
end}, {__index = redis})
