-- The field `unused` of the totals: since when the queue was seen to be unused (Unix ms), a blank, and the sum of its
-- totals then. A sum that differs is of a queue that was used since. It is no number, so nobody takes it for a total.

-- The sum, how many died ('' for none), what the mark says, and whether there are no totals; nil when nobody can read.
local function read_totals(counters)
  local words, total, dead, since, marked = redis.pcall('HGETALL', counters), 0, '', 0, nil
  if words.err then return end
  for n = 1, #words, 2 do
    if words[n] == 'unused' then
      local at, of = string.match(words[n + 1], '^(%d+) (%d+)$')
      since, marked = tonumber(at) or 0, tonumber(of)
    else
      total = total + math.floor(number(words[n + 1]) or 0)
      if words[n] == 'dead' then dead = words[n + 1] end
    end
  end
  return total, dead, since, marked, #words == 0
end
