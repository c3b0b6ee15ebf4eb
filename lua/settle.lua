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

-- As locals, since a global is looked up by its name each time.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
local tokens, verb, age = ARGV[1], ARGV[3], ARGV[#ARGV - 1]
local now = tonumber(ARGV[2])

-- A window keeps every attempt until it is settled, and what blocks for ever is all that has to be looked
-- at again afterwards. So most attempts are settled here, before anything else is even defined.
local plain, changed, members = true, 0, {}
for i = 1, #KEYS do
  local a = i * 7 - 2
  plain = plain and ARGV[a] == 'window' and (ARGV[a + 6] ~= '0' or ARGV[a + 5] == '0')
  -- One that holds fewer attempts than its limit is not blocked: nothing to announce.
  plain = plain and (verb == 'fail' or call('ZCARD', KEYS[i]) < tonumber(ARGV[a + 1]))
  if not plain then break end
end
if verb ~= 'fail' then
  for first = 1, #tokens, 16 do members[#members + 1] = string.sub(tokens, first, first + 15) end
  -- Lua can pass on only so many arguments at once, and ZREM wants one.
  if plain and #members > 0 and #members <= 1000 then
    for i = 1, #KEYS do
      if call('ZREM', KEYS[i], unpack(members)) > 0 then changed = changed + 1 end
    end
    return changed
  end
end

if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local failed = string.format('%.0f', math.max(now - age, 1))
if plain and verb == 'fail' then
  for i = 1, #KEYS do
    -- XX: what was cleaned up meanwhile stays so. LT: what has failed already stays when it was.
    changed = changed + call('ZADD', KEYS[i], 'XX', 'LT', 'CH', failed, tokens)
  end
  return changed
end

-- include counters.lua

for i, key in ipairs(KEYS) do
  local did, a = nil, i * 7 - 2
  if verb == 'fail' then
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
