-- Enters a name into an index, or renews its entry.
--
-- KEYS[1]  the names by the time at which they leave, see index.lua
-- KEYS[2]  their texts
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[2]  the name
-- ARGV[3]  after how many milliseconds it leaves; -1: never
-- ARGV[4]  its text

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include index.lua

local lifts, notes, name = KEYS[1], KEYS[2], ARGV[2]
local at = ARGV[3] == '-1' and '+inf' or string.format('%.0f', now + ARGV[3])
call('HSET', notes, name, ARGV[4])
call('ZADD', lifts, at, name)
drop_lifted(lifts, notes, 100)
let_expire(lifts, notes)
return 1
