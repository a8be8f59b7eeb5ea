-- When a task is due, Unix ms, of a word that says '' (now), '+N' (in N ms) or 'N' (at Unix ms N).
local function read_due(word, now)
  if word == '' then return now end
  return string.sub(word, 1, 1) == '+' and now + word or tonumber(word)
end
