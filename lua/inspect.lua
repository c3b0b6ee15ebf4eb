-- Reports what counters hold and how they stand. Writes nothing.
--
-- KEYS     the counters
-- ARGV[1]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[2]  how many attempts to report of each counter at most
--
-- Reply: the time, and for each counter a list: usage, limit, reset and rate as in reserve.lua, how many attempts
-- it holds, its summary or nil, and then attempts with their times, the newest first.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, most = tonumber(ARGV[1]), ARGV[2]
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local reply = { now }
for i, l in ipairs(limits) do
  local key = KEYS[i]
  local j = judge(key, l)
  local kept = call('ZCOUNT', key, '(0', '+inf')
  local summary = call('ZRANGEBYSCORE', key, '-inf', 0, 'LIMIT', 0, 1)[1] or false
  local attempts = call('ZREVRANGEBYSCORE', key, '+inf', '(0', 'WITHSCORES', 'LIMIT', 0, most)
  local contents = { j.usage, j.limit, j.reset, j.thousandths or j.usage * 1000, kept, summary }
  for k = 1, #attempts do contents[6 + k] = attempts[k] end
  reply[i + 1] = contents
end
return reply
