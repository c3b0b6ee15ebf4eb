-- Lists entries of indexes in the order in which they leave, and by name where that is the same.
--
-- KEYS     for each index the names by the time at which they leave, and their texts, see index.lua
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[2]  the time of the entry behind which to begin, or +inf; empty: begin with the first that has not left
-- ARGV[3]  its name
-- ARGV[4]  how many entries to list of each index at most
--
-- Reply: the time, and for each index a list of names, times (inf: never) and texts.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, score, name, count = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if score ~= '' and score ~= '+inf' and tonumber(score) <= now then score = '' end

-- By bytes, as Redis orders names. Lua would compare by the server's locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

-- The rank of the first entry behind the given one, which may be gone. Any number of entries may leave at one
-- time, as those do that never leave, so that their names are searched by halves.
local function first_after(lifts)
  if score == '' then return call('ZCOUNT', lifts, '-inf', now) end
  local rank = call('ZCOUNT', lifts, '-inf', '(' .. score)
  local low, high = rank, rank + call('ZCOUNT', lifts, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(call('ZRANGE', lifts, middle, middle)[1], name) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local reply = { now }
for i = 1, #KEYS, 2 do
  local first = first_after(KEYS[i])
  local found = call('ZRANGE', KEYS[i], first, first + count - 1, 'WITHSCORES')
  local names, listed = {}, {}
  for j = 1, #found, 2 do names[#names + 1] = found[j] end
  local texts = #names > 0 and call('HMGET', KEYS[i + 1], unpack(names)) or {}
  for j = 1, #names do
    listed[j * 3 - 2], listed[j * 3 - 1], listed[j * 3] = names[j], found[j * 2], texts[j]
  end
  reply[#reply + 1] = listed
end
return reply
