-- Counts the entries of indexes. Also drops some of those that have left, as it is called now and then: an index
-- to which nothing is added any more must not be freed in one long step when it expires.
--
-- KEYS     for each index the names by the time at which they leave, and their texts, see index.lua
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
--
-- Reply: for each index how many entries have not left.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include index.lua

local counts = {}
for i = 1, #KEYS, 2 do
  drop_lifted(KEYS[i], KEYS[i + 1], 200)
  counts[#counts + 1] = call('ZCOUNT', KEYS[i], string.format('(%.0f', now), '+inf')
end
return counts
