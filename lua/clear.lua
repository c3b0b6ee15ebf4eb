-- Takes every failure, of whatever spelling, and every summary out of the given counters: an operator lifts blocks.
-- Attempts in flight stay.
--
-- KEYS     the counters
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
--
-- Reply: for each counter 1 if it was blocked, else 0.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local reply = {}
for i, l in ipairs(limits) do
  local key = KEYS[i]
  reply[i] = is_blocked(key, l) and 1 or 0
  if call('ZREMRANGEBYSCORE', key, '-inf', now) > 0 then let_expire(key, l) end
  -- In any case: a process may have cached a block that this server has lost, and would write it back.
  publish(key)
end
return reply
