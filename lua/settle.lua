-- Says of one attempt that it failed, or takes attempts back, in all of the given counters.
--
-- KEYS     the counters
-- ARGV[1]  the attempt's token; to take back, any number of tokens, 16 bytes each
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  'fail': it failed; 'cancel': it never was
-- ARGV[4]  how many keys there are
-- then for each counter seven arguments, which counters.lua describes,
-- then how long ago it failed, in milliseconds; and the channel
--
-- Reply: in how many counters the attempt was in flight (fail), or was at all (cancel).

local tokens, verb = ARGV[1], ARGV[3]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local members = {}
for first = 1, #tokens, 16 do members[#members + 1] = string.sub(tokens, first, first + 15) end

local changed, failed = 0, math.max(now - ARGV[#ARGV - 1], 1)
for i, key in ipairs(KEYS) do
  local did, a = nil, i * 7 - 2
  if verb == 'fail' then
    -- XX: what was cleaned up meanwhile stays so. LT: what has failed already stays when it was.
    did = redis.call('ZADD', key, 'XX', 'LT', 'CH', failed, tokens)
  else
    local was_blocked = is_blocked(key, a)
    did = remove(key, members)
    if was_blocked and did > 0 and not is_blocked(key, a) then announce(key) end
  end
  if did > 0 then
    changed = changed + 1
    if verb == 'fail' and adds_up(a) then fold(key, judge(key, a)) end
    let_expire(key, a)
  end
end
return changed
