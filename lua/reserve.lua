-- Reserves one attempt in all of the given counters, or in none of them.
--
-- KEYS     the counters, then the known addresses of those that make an exception for them
-- ARGV[1]  the attempt's token, 16 bytes; empty: report only, write nothing
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  the lease in milliseconds; 0: the attempt counts at once
-- ARGV[4]  how many of the keys are counters
-- then for each counter seven arguments, which counters.lua describes,
-- then for each set of known addresses four:
--   counter   which counter makes the exception, from 1
--   address   the address that is exempt if it is known
--   kept_for  how long an address is known after the last login from it, in milliseconds
--   newest    how many of the newest are
--
-- Reply: for each counter five values:
--   usage   attempts that count, this one among them if it was admitted
--   limit   how many may
--   token   as given if the attempt was admitted (to all counters); empty if this counter makes an
--           exception and the attempt is not in it; else nil
--   reset   milliseconds until the block lifts; -1: never; 0: not blocked. A counter that refuses
--           without being blocked is busy: usage has reached the limit with attempts in flight.
--   rate    usage in thousandths, where it has a fraction
-- Where all counters are windows that are not full, as most are, only the token and then each usage; of a
-- counter that makes an exception, -1 less its usage. Where there was no counter yet, and no exception, only
-- the token: each usage is 1.

-- As locals, since a global is looked up by its name each time.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
local token, counters = ARGV[1], tonumber(ARGV[4])
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- As text: a number would be written out anew for each command.
local lease_ends = string.format('%.0f', now + ARGV[3])

local exempt = {}
for k = 1, #KEYS - counters do
  local b, known = counters * 7 + k * 4, KEYS[counters + k]
  local at = call('ZSCORE', known, ARGV[b + 2])
  if at and at + ARGV[b + 3] > now then
    exempt[tonumber(ARGV[b + 1])] = call('ZREVRANK', known, ARGV[b + 2]) < tonumber(ARGV[b + 4])
  end
end

-- A window that holds fewer attempts than its limit, of whatever age, is neither blocked nor busy. So
-- most attempts are decided here, before anything else is even defined.
local plain = token ~= ''
for i = 1, counters do plain = plain and ARGV[i * 7 - 2] == 'window' end

-- Of somebody new there is no counter yet: that is one command for all of them. (Lua can pass on only so
-- many arguments at once.)
local is_new = plain and counters <= 1000 and call('EXISTS', unpack(KEYS, 1, counters)) == 0
if is_new and not next(exempt) then
  -- Adding comes first: a server whose memory is full refuses that, and nothing has been written yet.
  for i = 1, counters do call('ZADD', KEYS[i], lease_ends, token) end
  for i = 1, counters do
    local a = i * 7 - 2
    local keep = ARGV[a + 1] == '1' and ARGV[a + 6] or ARGV[a + 5]
    if keep ~= '0' then call('PEXPIRE', KEYS[i], keep) end
  end
  return token
end

-- Of others, it is one for each. (With room for three, so that a table does not have to grow.)
local usage, limits = { token, nil, nil, nil }, { nil, nil, nil }
for i = 1, counters do
  local size = is_new and 0 or plain and call('ZCARD', KEYS[i])
  limits[i] = tonumber(ARGV[i * 7 - 1])
  plain = size and size < limits[i]
  if not plain then break end
  usage[i + 1] = size
end

if plain then
  -- Adding comes first here too.
  for i = 1, counters do
    if not exempt[i] and call('ZADD', KEYS[i], 'NX', lease_ends, token) == 0 then
      plain, usage[i + 1] = false, nil
    end
  end
  for i = 1, counters do
    local key, a, size, upto = KEYS[i], i * 7 - 2, usage[i + 1], 0
    if size and size > 0 then
      local window = tonumber(ARGV[a + 2])
      upto = window > 0 and math.max(now - window, 0) or 0
    end
    if exempt[i] then
      usage[i + 1] = -1 - (size > 0 and call('ZCOUNT', key, string.format('(%.0f', upto), '+inf') or 0)
    elseif size then
      if size > 0 then size = size - call('ZREMRANGEBYSCORE', key, '-inf', upto) end
      usage[i + 1] = size + 1
      local keep = size + 1 >= limits[i] and ARGV[a + 6] or ARGV[a + 5]
      if keep == '0' then
        call('PERSIST', key)
      else
        call('PEXPIRE', key, keep)
      end
    end
  end
  -- What was here already is looked at below: its first reply may have been lost.
  if plain then return usage end
end

local reply = {}

-- include counters.lua

-- First every counter is asked.
local admitted, held, judged = token ~= '', {}, {}
for i = 1, counters do
  judged[i] = judge(KEYS[i], i * 7 - 2)
  if token ~= '' and not exempt[i] and refuses(judged[i]) then
    -- An attempt that is here already is let through.
    held[i] = redis.call('ZSCORE', KEYS[i], token)
    admitted = admitted and held[i]
  end
end

local function answer(j, third, usage, reset)
  local r = #reply
  local rate = (j.thousandths or j.usage * 1000) + (usage - j.usage) * 1000
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5] = usage, j.limit, third, reset, rate
end

local function keep_blocked(key, a, j)
  local expires, keep = redis.call('PTTL', key), lifetime(a, j, true)
  if keep == 0 then
    if expires >= 0 then redis.call('PERSIST', key) end
  elseif expires < math.max(j.reset, lifetime(a, j, false) - ARGV[a + 5]) then
    redis.call('PEXPIRE', key, keep)
  end
end

if not admitted then
  for i = 1, counters do
    local key, a, j = KEYS[i], i * 7 - 2, judged[i]
    if token ~= '' and not exempt[i] then
      fold(key, j)
      -- A new policy may have made this block longer since the key was written, or given it an end.
      if j.reset ~= 0 then keep_blocked(key, a, j) end
    end
    answer(j, exempt[i] and '' or false, j.usage, j.reset)
  end
  return reply
end

-- Then the attempt is written to all of them, adding first as above.
for i = 1, counters do
  if not exempt[i] and not held[i] then
    held[i] = redis.call('ZADD', KEYS[i], 'NX', lease_ends, token) == 0
  end
end
for i = 1, counters do
  local key, a, j = KEYS[i], i * 7 - 2, judged[i]
  if exempt[i] then
    answer(j, '', j.usage, j.reset)
  elseif held[i] then
    answer(j, token, j.usage, 0)
  else
    if j.past and j.past ~= j.found then redis.call('ZADD', key, -1, j.past) end
    if j.found and j.past ~= j.found then redis.call('ZREM', key, j.found) end
    if j.upto then redis.call('ZREMRANGEBYSCORE', key, j.from, j.upto) end
    if j.drop then remove(key, j.drop) end
    local usage = j.usage + 1
    local keep = lifetime(a, j, usage >= j.limit)
    if keep == 0 then
      redis.call('PERSIST', key)
    else
      redis.call('PEXPIRE', key, keep)
    end
    answer(j, token, usage, 0)
  end
end
return reply
