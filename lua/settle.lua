-- Says of one attempt that it failed, or takes it back, in all of the given counters.
--
-- KEYS     the counters, as reserve.lua describes them
-- ARGV[1]  the attempt's token
-- ARGV[2]  'fail': it failed now; 'cancel': it never was
-- ARGV[3]  the time in milliseconds since 1970; empty: the server's own
-- then for each counter three arguments, as in reserve.lua: limit, window, block
--
-- Reply: in how many counters the attempt was in flight (fail), or was at all (cancel).

local token, verb = ARGV[1], ARGV[2]
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A key without end is one that blocks for ever, or might when what is in flight fails. If that is
-- past, the key runs out a window after its newest attempt, or after now.
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

local changed = 0
for i, key in ipairs(KEYS) do
  local did
  if verb == 'fail' then
    -- XX: what was cleaned up meanwhile stays so. LT: what has failed already stays when it was.
    did = redis.call('ZADD', key, 'XX', 'LT', 'CH', now, token)
  else
    did = redis.call('ZREM', key, token)
  end
  changed = changed + did
  local a = i * 3 + 1
  local window = tonumber(ARGV[a + 1])
  if did > 0 and ARGV[a + 2] == '0' and window > 0 then
    let_expire(key, tonumber(ARGV[a]), window)
  end
end
return changed
