-- Takes every failed attempt of a main counter out of that counter and out of any number of others.
--
-- Attempts in flight stay, and so does everything in the other counters that is not in the main one.
-- With a token, all that happens only while the token is in the main counter, so that an attempt cleans
-- up once, however often it is said that it went well.
--
-- KEYS[1]  the main counter, as reserve.lua describes it
-- KEYS[2…] the others
-- ARGV[1]  the token of an attempt that is taken out too, failed or in flight; empty: none
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- then for each counter three arguments, as in reserve.lua: limit, window, block
--
-- Reply: how many attempts left the main counter.

local token = ARGV[1]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- As in settle.lua.
local function let_expire(key, limit, window)
  local newest = redis.call('ZREVRANGEBYSCORE', key, '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not newest then return end
  if redis.call('ZCARD', key) >= limit then
    local last = redis.call('ZREVRANGEBYSCORE', key, now, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local function reached(stop, to)
      return redis.call('ZCOUNT', key, string.format('(%.0f', stop - window), to) >= limit
    end
    if reached(now, '+inf') or (last and reached(last, last)) then return end
  end
  redis.call('PEXPIRE', key, math.max(newest - now, 0) + window)
end

local tokens = {}
if token == '' or redis.call('ZSCORE', KEYS[1], token) then
  tokens = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
end
if token ~= '' then tokens[#tokens + 1] = token end

local left_main = 0
for i, key in ipairs(KEYS) do
  local left = 0
  -- Lua can pass on only so many arguments at once.
  for first = 1, #tokens, 1000 do
    left = left + redis.call('ZREM', key, unpack(tokens, first, math.min(first + 999, #tokens)))
  end
  if i == 1 then left_main = left end
  local a = i * 3
  local window = tonumber(ARGV[a + 1])
  if left > 0 and ARGV[a + 2] == '0' and window > 0 then
    let_expire(key, tonumber(ARGV[a]), window)
  end
end
return left_main
