-- Reserves one attempt in all of the given counters, or in none of them.
--
-- KEYS     the counters, then the known addresses of those that exempt them
-- ARGV[1]  the attempt's token, 16 bytes; empty: report only, write nothing. If the user was not spelled in the
--          normal form, the spelling follows, see counters.lua
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- then for each set of known addresses the one that is exempt if it is among them
--
-- What does not vary from call to call is part of the text: `insert` lines are replaced by the limits of
-- the counters, see counters.lua.
--
-- Reply: for each counter five values:
--   usage   attempts that count, this one included if it was admitted
--   limit   how many may
--   token   as given if the attempt was admitted (to all counters); empty if this counter exempts the
--           address, and the attempt is not in it; else nil, also if the attempt was admitted and this counter is
--           in shadow and would have refused it, so that the attempt is not in it
--   reset   milliseconds until the block lifts; -1: never; 0: not blocked. A counter that refuses
--           without being blocked is busy: usage has reached the limit with attempts in flight.
--   rate    usage in thousandths, where it has a fraction
-- If a counter is blocked, the server's run id follows: on another server, the block may have been lost.
-- Where all counters are windows that are not full, as most are, one string: the token and, unless the attempt
-- is the first in all of them, each usage behind a space; of a counter that exempts the address, -1 less its
-- usage. A string, because a table has to be converted value by value.

-- Locals, since a global is looked up by name at each use. Until counters.lua is included, loops over the
-- counters are written out for each policy, see unroll.rs.
local call, format, KEYS, ARGV = redis.call, string.format, KEYS, ARGV
-- insert count, plain, lease, usages, kept_for, newest, limit, window, keep_new, keep, keep_full
local token, now = ARGV[1], nil
if ARGV[2] == '' then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
else
  now = tonumber(ARGV[2])
end
-- As text: a number would be formatted for each command. In two parts, as some servers have integers of 32
-- bits, and '%.0f' takes longer than both.
local ends = now + lease
local lease_ends = format('%d%06d', ends / 1000000, ends % 1000000)

-- By counter: the suffix of a failure in this spelling, whether the address is exempt, and the usage.
local spelled, exempt, usage = {}, {}, {}
-- The score of an attempt whose spelling is pending.
local pending
if #token > 16 then
  pending = format('%.1f', ends - 0.5)
  for i = 1, count do
    local own = string.sub(token, i * 8 + 9, i * 8 + 16)
    spelled[i] = own ~= '\0\0\0\0\0\0\0\0' and own
  end
  token = string.sub(token, 1, 16)
end

local known, is_exempt = 0, false
for i = 1, count do
  if newest[i] > 0 then
    known = known + 1
    local key, address = KEYS[count + known], ARGV[2 + known]
    local at = call('ZSCORE', key, address)
    exempt[i] = at and at + kept_for[i] > now and call('ZREVRANK', key, address) < newest[i]
    is_exempt = is_exempt or exempt[i]
  end
end

-- A window that holds fewer attempts than its limit, of whatever age, is neither blocked nor busy. So most
-- attempts are decided here, before anything else is defined.
if plain and token ~= '' then
  -- New counters do not exist yet: one command for all of them. (Lua passes on a limited number of
  -- arguments.)
  local is_new = count <= 1000 and call('EXISTS', unpack(KEYS, 1, count)) == 0
  if is_new and not is_exempt then
    -- Adding comes first: a server whose memory is full refuses it, and nothing has been written yet.
    for i = 1, count do
      call('ZADD', KEYS[i], spelled[i] and pending or lease_ends, token)
    end
    for i = 1, count do
      if keep_new[i] ~= '0' then call('PEXPIRE', KEYS[i], keep_new[i]) end
    end
    return token
  end

  local is_sparse = true
  for i = 1, count do
    if is_sparse then
      usage[i] = is_new and 0 or call('ZCARD', KEYS[i])
      is_sparse = usage[i] < limit[i]
    end
  end
  if is_sparse then
    local is_held = false
    for i = 1, count do
      if not exempt[i] then
        local own = spelled[i]
        if own and call('ZSCORE', KEYS[i], token .. own)
          or call('ZADD', KEYS[i], 'NX', own and pending or lease_ends, token) == 0 then
          is_held, usage[i] = true, nil
        end
      end
    end
    -- The beginning of the window as text, which counters with windows of one length share.
    local length, upto = 0, '0'
    for i = 1, count do
      local key, size = KEYS[i], usage[i]
      if size and size > 0 and window[i] ~= length then
        length = window[i]
        local begins = length > 0 and now > length and now - length or 0
        upto = format('%d%06d', begins / 1000000, begins % 1000000)
      end
      if exempt[i] then
        usage[i] = -1 - (size > 0 and call('ZCOUNT', key, '(' .. upto, '+inf') or 0)
      elseif size then
        if size > 0 then size = size - call('ZREMRANGEBYSCORE', key, '-inf', upto) end
        usage[i] = size + 1
        local keeps = size + 1 < limit[i] and keep[i] or keep_full[i]
        if keeps == '0' then
          call('PERSIST', key)
        else
          call('PEXPIRE', key, keeps)
        end
      end
    end
    -- A token that was there already is looked at below: its first reply may have been lost.
    if not is_held then return token .. format(usages, unpack(usage, 1, count)) end
  end
end
local spelled, exempt = { unpack(spelled, 1, count) }, { unpack(exempt, 1, count) }

-- include counters.lua

local reply = {}

-- Whether a counter holds the attempt: it is reserved once more, maybe after it has failed.
local function holds(i)
  local own = spelled[i]
  return call('ZSCORE', KEYS[i], token) or own and call('ZSCORE', KEYS[i], token .. own)
end

-- First every counter is judged.
local admitted, held, judged, shadowed = token ~= '', {}, {}, {}
for i, l in ipairs(limits) do
  judged[i] = judge(KEYS[i], l)
  if token ~= '' and not exempt[i] and refuses(judged[i]) then
    -- An attempt that is here already is let through.
    held[i] = holds(i)
    if l.shadow then
      shadowed[i] = not held[i]
    else
      admitted = admitted and held[i]
    end
  end
end

local function answer(j, third, usage, reset)
  local r = #reply
  local rate = (j.thousandths or j.usage * 1000) + (usage - j.usage) * 1000
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5] = usage, j.limit, third, reset, rate
end

-- A new policy may have made a block longer since the key was written, or given it an end.
local function keep_blocked(key, l, j)
  local expires, keeps = call('PTTL', key), lifetime(l, j, true)
  if keeps == 0 then
    if expires >= 0 then call('PERSIST', key) end
  elseif expires < math.max(j.reset, lifetime(l, j, false) - l.keep) then
    call('PEXPIRE', key, keeps)
  end
end

if not admitted then
  local has_block = false
  for i, l in ipairs(limits) do
    local key, j = KEYS[i], judged[i]
    has_block = has_block or j.reset ~= 0
    if token ~= '' and not exempt[i] then
      fold(key, j)
      if j.reset ~= 0 then keep_blocked(key, l, j) end
    end
    answer(j, exempt[i] and '' or false, j.usage, j.reset)
  end
  if has_block then reply[#reply + 1] = run_id() end
  return reply
end

-- Then the attempt is written to all of them that would not refuse it, adding first as above.
for i = 1, count do
  if not exempt[i] and not shadowed[i] then
    local own = spelled[i]
    if own then
      held[i] = held[i] or holds(i)
      if held[i] then
        set_pending(KEYS[i], token)
      else
        call('ZADD', KEYS[i], pending, token)
      end
    elseif not held[i] then
      held[i] = call('ZADD', KEYS[i], 'NX', lease_ends, token) == 0
    end
  end
end
for i, l in ipairs(limits) do
  local key, j = KEYS[i], judged[i]
  if exempt[i] then
    answer(j, '', j.usage, j.reset)
  elseif shadowed[i] then
    fold(key, j)
    if j.reset ~= 0 then keep_blocked(key, l, j) end
    answer(j, false, j.usage, j.reset)
  elseif held[i] then
    answer(j, token, j.usage, 0)
  else
    if j.past and j.past ~= j.found then call('ZADD', key, -1, j.past) end
    if j.found and j.past ~= j.found then call('ZREM', key, j.found) end
    if j.upto then call('ZREMRANGEBYSCORE', key, j.from, j.upto) end
    if j.drop then remove(key, j.drop) end
    local usage = j.usage + 1
    set_lifetime(key, lifetime(l, j, usage >= j.limit))
    answer(j, token, usage, 0)
  end
end
return reply
