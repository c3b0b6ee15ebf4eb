-- Adds an attempt that failed a while ago, when this server could not be asked, to all of the given
-- counters, whatever they allow: it has happened.
--
-- KEYS     the counters
-- ARGV[1]  the attempt's token
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  how long ago it failed, in milliseconds
-- ARGV[4]  how many keys there are
-- then for each counter seven arguments, which counters.lua describes
--
-- Reply: in how many counters it had not been yet.

local token, age = ARGV[1], tonumber(ARGV[3])
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local failed = math.max(now - age, 1)

-- include counters.lua

local added = 0
for i, key in ipairs(KEYS) do
  local a = i * 7 - 2
  local expires = redis.call('PTTL', key)
  if redis.call('ZADD', key, 'NX', failed, token) == 1 then
    added = added + 1
    local j = judge(key, a)
    if adds_up(a) then fold(key, j) end
    local keep = lifetime(a, j, refuses(j))
    if keep == 0 then
      redis.call('PERSIST', key)
    elseif expires == -2 or (expires >= 0 and expires < keep) then
      redis.call('PEXPIRE', key, keep)
    end
  end
end
return added
