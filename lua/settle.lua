-- Turns one attempt into a failure, or takes attempts back, in all of the given counters.
--
-- KEYS     the counters
-- ARGV[1]  the attempt's token; to take back, any number of tokens, 16 bytes each
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  to fail: how long ago, in milliseconds; empty: take back
-- ARGV[4]  the spelling of the user, see counters.lua; empty: the normal form
--
-- Reply: in how many counters the attempt was in flight (fail), or was at all (take back). If a failure began
-- blocks, a table: this number and, for each of them, the position of the counter, from 0, and its usage, limit,
-- reset and rate as in reserve.lua. If blocks ended, a table: this number and the positions of their counters.

-- Locals, since a global is looked up by name at each use. Until counters.lua is included, loops over the
-- counters are written out for each policy, see unroll.rs.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
-- insert count, plain_settle, limit
local tokens, now, ago, changed = ARGV[1], ARGV[2], ARGV[3], 0
local is_failure = ago ~= ''

-- A window keeps every attempt until it is settled, and only what blocks forever has to be looked at
-- again afterwards. One that holds fewer attempts than its limit is not blocked, whatever fails, and there is
-- nothing to publish. So most attempts are settled here, before anything else is defined.
local is_sparse = plain_settle and ARGV[4] == '' and (is_failure or tokens ~= '' and #tokens <= 32)
for i = 1, count do
  is_sparse = is_sparse and call('ZCARD', KEYS[i]) < limit[i]
end
if is_sparse and not is_failure then
  -- One token is named twice: that costs less than a table of them.
  local first, last = string.sub(tokens, 1, 16), string.sub(tokens, -16)
  for i = 1, count do
    if call('ZREM', KEYS[i], first, last) > 0 then changed = changed + 1 end
  end
  return changed
end

if now == '' then
  local time = call('TIME')
  -- As text, which takes less than computing a number and formatting it. %d cuts off parts of a millisecond.
  now = time[1] .. string.format('%03d', time[2] / 1000)
end
local failed = now
if is_failure and (ago ~= '0' or now == '0') then failed = string.format('%.0f', math.max(now - ago, 1)) end
if is_sparse then
  for i = 1, count do
    -- XX: what was cleaned up meanwhile stays so. LT: what has failed already keeps its time.
    changed = changed + call('ZADD', KEYS[i], 'XX', 'LT', 'CH', failed, tokens)
  end
  return changed
end
now = tonumber(now)

-- include counters.lua

if not is_failure then
  local joined = tokens
  tokens = {}
  for first = 1, #joined, 16 do tokens[#tokens + 1] = string.sub(joined, first, first + 15) end
end
local reply = {}
for i, l in ipairs(limits) do
  local key, did = KEYS[i], nil
  if is_failure then
    local spelling, was_blocked = suffix(ARGV[4], i), is_blocked(key, l)
    did = call('ZADD', key, 'XX', 'LT', 'CH', failed, tokens)
    if spelling ~= '' then
      -- It may be repeated, and the clock set back since.
      did = did + call('ZADD', key, 'XX', 'LT', 'CH', failed, tokens .. spelling)
      spell(key, tokens, spelling)
    end
    if did > 0 and (l.algorithm == 'bucket' or l.algorithm == 'counter') then fold(key, judge(key, l)) end
    -- If the call is repeated because its reply was lost, the block that it began is in force.
    if did > 0 and not was_blocked or did == 0 and is_newest_failure(key, tokens, spelling) then
      report_block(reply, i - 1, key, l)
    end
  else
    local was_blocked = is_blocked(key, l)
    did = remove(key, with_spelling(tokens, suffix(ARGV[4], i)))
    if was_blocked and did > 0 and not is_blocked(key, l) then
      publish(key)
      reply[#reply + 1] = i - 1
    end
  end
  if did > 0 then
    changed = changed + 1
    let_expire(key, l)
  end
end
return #reply == 0 and changed or { changed, unpack(reply) }
