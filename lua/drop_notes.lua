-- Drops entries of an index, unless they were renewed.
--
-- KEYS[1]  the names by the time at which they leave, see index.lua
-- KEYS[2]  their texts
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
-- then for each entry its name and what its text begins with: another one if it was renewed

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, dropped = tonumber(ARGV[1]), 0
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include index.lua

local lifts, notes = KEYS[1], KEYS[2]
for i = 2, #ARGV, 2 do
  local name, beginning = ARGV[i], ARGV[i + 1]
  local text = call('HGET', notes, name)
  if not text or string.sub(text, 1, #beginning) == beginning then
    dropped = dropped + call('ZREM', lifts, name)
    call('HDEL', notes, name)
  end
end
if dropped > 0 then let_expire(lifts, notes) end
return dropped
