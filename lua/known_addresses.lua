-- Keeps the addresses that a user has logged in from, and lists them.
--
-- KEYS[1]  a sorted set of addresses by the time of the last login
-- ARGV[1]  an address to keep; empty: list only, write nothing
-- ARGV[2]  how many of the newest are kept
-- ARGV[3]  for how long after the last login, in milliseconds
-- ARGV[4]  the time in milliseconds since 1970; empty: the server's own
--
-- Reply: the addresses, the newest first.

local key, address, newest, kept_for = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

if address ~= '' then
  redis.call('ZADD', key, now, address)
  redis.call('ZREMRANGEBYRANK', key, 0, -newest - 1)
  redis.call('PEXPIRE', key, kept_for)
end
local oldest = string.format('(%.0f', now - kept_for)
return redis.call('ZREVRANGEBYSCORE', key, '+inf', oldest, 'LIMIT', 0, newest)
