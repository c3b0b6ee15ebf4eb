-- Takes every failed attempt of a main counter out of that counter and out of any number of others, and
-- forgets the main one's past.
--
-- Attempts in flight stay, and so does everything in the other counters that is not in the main one.
-- With a token, all that happens only while the token is in the main counter, so that an attempt cleans
-- up once, however often it is said that it went well.
--
-- KEYS[1]  the main counter
-- KEYS[2…] the others
-- ARGV[1]  the token of an attempt that is taken out too, failed or in flight; empty: none
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  not used
-- ARGV[4]  how many keys there are
-- then for each counter seven arguments, which counters.lua describes
--
-- Reply: the tokens that left, for counters that are kept on another server.

local token = ARGV[1]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local tokens = {}
if token == '' or redis.call('ZSCORE', KEYS[1], token) then
  tokens = redis.call('ZRANGEBYSCORE', KEYS[1], '(0', now)
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)
end
if token ~= '' then tokens[#tokens + 1] = token end

for i, key in ipairs(KEYS) do
  local left = 0
  -- Lua can pass on only so many arguments at once.
  for first = 1, #tokens, 1000 do
    left = left + redis.call('ZREM', key, unpack(tokens, first, math.min(first + 999, #tokens)))
  end
  if left > 0 then let_expire(key, i * 7 - 2) end
end
return tokens
