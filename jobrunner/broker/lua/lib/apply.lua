-- Applies staged rows, as many as there is room for. Who left the batch is noted; leases end behind the last row.
local tally = {moved = 0, new = 0, dead = 0, ended = 0, skipped = 0}
local gone = {}
local left = {}
local cancelled = {}

local function too_often(most) return 'it moved ' .. most .. ' times, which is its max_hops' end

local function apply_to_member(one, target, payload, more, read, now, defaults)
  local task = read_moving(one)
  gone[#gone + 1], left[one] = one, true
  if task.err or not task[1] then return drop(one) end
  local attempts, hops = (number(task[2]) or 0) + read.tries + 1, (number(task[4]) or 0) + 1
  if task[10] then
    cancelled[#cancelled + 1] = one
  elseif not target or hops > read.most_hops then
    give_up(one, attempts, target and too_often(read.most_hops) or payload, now, defaults)
    tally.dead = tally.dead + 1
  else
    move_on(one, task, target, payload, more, hops, attempts, now)
    tally.moved = tally.moved + 1
  end
end

local function apply_new(one, target, payload, more, read, now, defaults)
  local hops = more.parent and inherit(more.parent).hops + 1 or 0
  local is_in_time = hops <= read.most_hops
  if not is_in_time then target = {name = queue, ready = {}, last = 0, room = 0, enqueued = 0} end
  if not make(one, target, payload, more, now) then
    tally.skipped = tally.skipped + 1
  elseif is_in_time then
    tally.new = tally.new + 1
  else
    redis.call('HINCRBY', counters, 'enqueued', 1)
    give_up(one, 0, too_often(read.most_hops), now, defaults)
    tally.dead = tally.dead + 1
  end
end

-- Returns how many rows were applied, and the target that is full when that ended it.
local function apply(words, read, now, defaults)
  local ids, mores, new = {}, {}, {}
  for at = 1, #words, 4 do
    local n, more = #ids + 1, read_more(words[at + 3])
    ids[n], mores[n] = more.new and more.parent or words[at], more
    if more.new then new[#new + 1] = words[at] end
  end
  look_for(new)
  for n, is_live in ipairs(are_members(ids, read.number, now)) do
    local at, more = 4 * n - 3, mores[n]
    local one, to = words[at], words[at + 1]
    local target = to ~= '' and line_to(to)
    if target and target.room < 1 and not more.over then return n - 1, to end
    if more.new and (is_live or not more.parent) then
      apply_new(one, target, words[at + 2], more, read, now, defaults)
    elseif is_live and not left[one] and not more.new then
      apply_to_member(one, target, words[at + 2], more, read, now, defaults)
    else
      tally.skipped = tally.skipped + 1
    end
  end
  return #ids
end
