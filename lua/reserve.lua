-- Reserves one attempt in all of the given counters, or in none of them.
--
-- A counter is a sorted set of attempt tokens. A score that has passed is the time at which the
-- attempt failed. A score to come is the end of its lease: the attempt is in flight, and becomes a
-- failure by itself when the lease ends.
--
-- KEYS     the counters
-- ARGV[1]  the attempt's token, 16 bytes; empty: report only, write nothing
-- ARGV[2]  the lease in milliseconds; 0: the attempt counts at once
-- ARGV[3]  the time in milliseconds since 1970; empty: the server's own
-- then for each counter five arguments:
--   limit   how many attempts may count
--   window  how long a failure counts, in milliseconds; 0: for ever
--   block   how long a full window blocks after its newest failure, in milliseconds;
--           0: for ever; -1: no block, the next attempt is free when the oldest failure leaves
--   keep    how long the key is of use after this write, in milliseconds; 0: for ever
--   keep_full  the same if it is full with this attempt, so that a block may come of it
--
-- Reply: for each counter four values:
--   usage   attempts that count, this one among them if it was admitted
--   limit   as given
--   token   as given if the attempt was admitted (to all counters), else nil
--   reset   milliseconds until the block lifts; -1: never; 0: not blocked. A counter that refuses
--           without being blocked is busy: usage has reached the limit with attempts in flight.

local token = ARGV[1]
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function count(key, after, to)
  return redis.call('ZCOUNT', key, string.format('(%.0f', after), to)
end

-- Scores are above minus infinity; every window that has no beginning begins there.
local function beginning(stop, window)
  return window > 0 and stop - window or -math.huge
end

local function count_window(key, stop, window, to)
  local after = beginning(stop, window)
  if after == -math.huge then return redis.call('ZCOUNT', key, '-inf', to) end
  return count(key, after, to)
end

-- How a counter stands: usage, reset, and up to which score its failures are obsolete.
local function judge(key, limit, window, block)
  local obsolete = beginning(now, window)
  local newest = redis.call('ZREVRANGEBYSCORE', key, now, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if newest[2] then
    if block < 0 then
      local recent = count_window(key, now, window, now)
      if recent >= limit then
        if window == 0 then return recent, -1 end
        -- There is room when fewer than the limit are left.
        local gives_way = redis.call('ZREVRANGEBYSCORE', key, now, '-inf', 'WITHSCORES', 'LIMIT', limit - 1, 1)
        return recent, gives_way[2] + window - now
      end
    else
      local last = tonumber(newest[2])
      local recent = count_window(key, last, window, newest[2])
      if recent >= limit then
        if block == 0 then return recent, -1 end
        if now < last + block then return recent, last + block - now end
        -- The block is over and the slate is clean, up to the last failure: an attempt without a
        -- lease is written with the time that it is now, and must stay.
        return count(key, now, '+inf'), 0, last
      end
    end
  end
  return count_window(key, now, window, '+inf'), 0, obsolete
end

-- First every counter is asked. One that holds fewer attempts than its limit, of whatever age, can
-- be neither blocked nor busy; so the common case costs one command.
local admitted = token ~= ''
local held, size, usage, reset, obsolete = {}, {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local a = i * 5 - 1
  local limit = tonumber(ARGV[a])
  size[i] = redis.call('ZCARD', key)
  if size[i] >= limit then
    usage[i], reset[i], obsolete[i] = judge(key, limit, tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    if reset[i] ~= 0 or usage[i] >= limit then
      -- An attempt that is here already is let through: its first reply may have been lost.
      held[i] = token ~= '' and redis.call('ZSCORE', key, token)
      admitted = admitted and held[i]
    end
  end
end

local reply = {}

if not admitted then
  for i, key in ipairs(KEYS) do
    local a, r = i * 5 - 1, #reply
    local limit = tonumber(ARGV[a])
    if not usage[i] then
      usage[i], reset[i] = judge(key, limit, tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    end
    -- A new policy may have made this block longer since the key was written, or given it an end.
    if token ~= '' and reset[i] ~= 0 then
      local expires, keep_full = redis.call('PTTL', key), ARGV[a + 4]
      if keep_full == '0' then
        if expires >= 0 then redis.call('PERSIST', key) end
      elseif expires < reset[i] then
        redis.call('PEXPIRE', key, keep_full)
      end
    end
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = usage[i], limit, false, reset[i]
  end
  return reply
end

-- Then the attempt is written to all of them. Adding comes first: a server whose memory is full
-- refuses that, and nothing has been written yet.
local lease_ends = now + ARGV[2]
for i, key in ipairs(KEYS) do
  if not held[i] then
    held[i] = redis.call('ZADD', key, 'NX', lease_ends, token) == 0
    if held[i] and not usage[i] then
      local a = i * 5 - 1
      usage[i] = judge(key, tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    end
  end
end

for i, key in ipairs(KEYS) do
  local a, r = i * 5 - 1, #reply
  local limit = tonumber(ARGV[a])
  if not held[i] then
    usage[i] = size[i] + 1
    local upto = obsolete[i] or beginning(now, tonumber(ARGV[a + 1]))
    if size[i] > 0 and upto > -math.huge then
      usage[i] = usage[i] - redis.call('ZREMRANGEBYSCORE', key, '-inf', upto)
    end
    local keep = usage[i] >= limit and ARGV[a + 4] or ARGV[a + 3]
    if keep == '0' then
      redis.call('PERSIST', key)
    else
      redis.call('PEXPIRE', key, keep)
    end
  end
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = usage[i], limit, token, 0
end
return reply
