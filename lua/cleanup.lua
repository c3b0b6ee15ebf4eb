-- Takes every failed attempt of the main counters out of them and out of any number of others, and
-- forgets the main ones' past.
--
-- Attempts in flight stay, and so does everything in the other counters that is not in a main one. With
-- a token, only counters that it is in are main ones, so that an attempt cleans up once, however often
-- it is said that it went well.
--
-- KEYS     the main counters, then the others
-- ARGV[1]  the token of an attempt that is taken out too, failed or in flight, or several tokens of the
--          same attempt, 16 bytes each; empty: none
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  how many are main counters
-- ARGV[4]  how many keys there are
-- then for each counter seven arguments, which counters.lua describes,
-- then how long ago it went well, in milliseconds: what failed since stays; and the channel
--
-- Reply: the tokens of the failed attempts that left, for counters that are kept on another server.

-- As locals, since a global is looked up by its name each time.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
local mains = tonumber(ARGV[3])
local own = {}
for first = 1, #ARGV[1], 16 do own[#own + 1] = string.sub(ARGV[1], first, first + 15) end

-- Most people get in at once: their counter holds this attempt and nothing else, and no window that
-- matters is full. Then there is nothing but this attempt to take out, and nothing to announce; that is
-- done here, before anything else is even defined.
local plain = #own > 0
for i = 1, #KEYS do
  local a = i * 7 - 2
  plain = plain and ARGV[a] == 'window' and (ARGV[a + 6] ~= '0' or ARGV[a + 5] == '0')
  local size = plain and call('ZCARD', KEYS[i])
  plain = size and size < tonumber(ARGV[a + 1]) and (i > mains or size <= 1)
  if not plain then break end
end
if plain then
  for i = 1, #KEYS do call('ZREM', KEYS[i], unpack(own)) end
  return {}
end

local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local was_blocked = {}
for i, key in ipairs(KEYS) do was_blocked[i] = is_blocked(key, i * 7 - 2) end

local function is_main(key)
  for _, token in ipairs(own) do
    if redis.call('ZSCORE', key, token) then return true end
  end
  return #own == 0
end

local left, tokens = {}, { unpack(own) }
local upto = now - ARGV[#ARGV - 1]
for i = 1, mains do
  if is_main(KEYS[i]) then
    for _, failed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i], '(0', upto)) do
      left[#left + 1], tokens[#tokens + 1] = failed, failed
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', 0)
  end
end

for i, key in ipairs(KEYS) do
  if remove(key, tokens) > 0 then let_expire(key, i * 7 - 2) end
  if was_blocked[i] and not is_blocked(key, i * 7 - 2) then announce(key) end
end
return left
