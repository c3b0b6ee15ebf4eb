-- What the scripts share: how a counter stands under each algorithm, and for how long it is of use. It
-- takes the place of the line `-- include counters.lua`; `now` is set by then.
--
-- A counter is a sorted set. Its members with a score above zero are attempt tokens. A score that has
-- passed is the time at which the attempt failed. A score to come is the end of its lease: the attempt
-- is in flight, and becomes a failure by itself when the lease ends.
--
-- One more member, with the score -1, may hold the past: what is no longer kept one by one.
--   'w nth began'                 sliding window: the last block is the nth in a row and began then
--   'b tokens less at nth began'  token bucket: what was missing at a time, and the last block
--   'c start previous current nth began'
--                                 sliding-window counter: counts of two windows, and the last block
-- An nth of 0 is no block. What another algorithm has left is ignored, and goes at the next admission.
--
-- For each counter there are seven arguments:
--   algorithm  window, growing (a window whose blocks grow), backoff, bucket or counter
--   limit      how many attempts may count; backoff: how many failures cost no wait
--   window     how long a failure counts, in milliseconds; 0: for ever. bucket: how long an empty one
--              takes to be full. backoff: after how long without a failure all are forgotten
--   block      how long reaching the limit blocks, in milliseconds; 0: for ever. Several, joined by
--              commas, for a block that comes again too soon. Empty: no block. backoff: the waits
--   again      how soon after the end of the last block that is. backoff: jitter in percent
--   keep       how long the key is of use after this, in milliseconds; 0: for ever
--   keep_full  the same if a block is or may be in force; several, as for block
-- In scripts that take attempts out, the last argument is the channel on which it is announced that a
-- counter which was blocked may no longer be.

-- How many of the newest failures bucket and counter keep one by one.
local KEPT = 8

local function numbers(list)
  local found = {}
  for number in string.gmatch(list, '[^,]+') do found[#found + 1] = tonumber(number) end
  return found
end

local function count(key, after, to)
  return redis.call('ZCOUNT', key, string.format('(%.0f', after), to)
end

-- When the window that ends at `stop` begins; below zero is the past.
local function beginning(stop, window)
  return window > 0 and math.max(stop - window, 0) or 0
end

-- Failures, the oldest first, with their times, and the past.
local function read_failures(key)
  local read = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES')
  local members, times, past = {}, {}, nil
  for i = 1, #read, 2 do
    local time = tonumber(read[i + 1])
    if time > 0 then
      members[#members + 1], times[#times + 1] = read[i], time
    else
      past = read[i]
    end
  end
  return members, times, past
end

-- The number in a row of a block that begins at `at`, after the last one.
local function number_after(blocks, again, nth, began, at)
  if nth == 0 or #blocks == 0 then return 1 end
  nth = math.min(nth, #blocks)
  local length = blocks[nth]
  if length == 0 or at < began + length then return nth end
  if at < began + length + again then return math.min(nth + 1, #blocks) end
  return 1
end

-- What is left of a block; 0: it is over, -1: it never is.
local function left_of_block(blocks, nth, began)
  if nth == 0 or #blocks == 0 then return 0 end
  local length = blocks[math.min(nth, #blocks)]
  if length == 0 then return -1 end
  return math.max(began + length - now, 0)
end

-- Each of these says how a counter stands:
--   usage, limit  attempts that count, and how many may; without those in flight if it is blocked
--   thousandths   the usage in thousandths, where it has a fraction
--   reset         milliseconds until the block lifts; -1: never; 0: not blocked
--   nth, began    the last block
-- and what an admission leaves of it:
--   from, upto    failures with these scores are dropped,
--   drop          and these members,
--   found, past   and the past that was found is replaced by this one
--   folded        what the members to drop add up to, if they can go at any time

local function judge_window(key, a)
  local limit, window, blocks = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), numbers(ARGV[a + 3])
  local grows = ARGV[a] == 'growing'
  local j = { limit = limit, reset = 0, nth = 0, began = 0, from = '-inf', upto = beginning(now, window) }
  -- As in reserve.lua: with so few it is neither blocked nor busy.
  if not grows and redis.call('ZCARD', key) < limit then
    j.usage = count(key, j.upto, '+inf')
    return j
  end
  if grows then
    j.from = '(0'
    j.found = redis.call('ZRANGEBYSCORE', key, '-inf', 0)[1]
    local nth, began = string.match(j.found or '', '^w (%d+) (%d+)$')
    if nth then j.nth, j.began, j.past = tonumber(nth), tonumber(began), j.found end
  end
  local newest = redis.call('ZREVRANGEBYSCORE', key, now, '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if newest and #blocks == 0 then
    local recent = count(key, j.upto, now)
    if recent >= limit then
      j.usage, j.reset = recent, -1
      if window > 0 then
        -- There is room when fewer than the limit are left.
        local gives_way = redis.call('ZREVRANGEBYSCORE', key, now, '(0', 'WITHSCORES', 'LIMIT', limit - 1, 1)
        j.reset = gives_way[2] + window - now
      end
      return j
    end
  elseif newest then
    local last = tonumber(newest)
    local recent = count(key, beginning(last, window), newest)
    if recent >= limit then
      j.nth = number_after(blocks, tonumber(ARGV[a + 4]), j.nth, j.began, last)
      j.began = last
      j.usage, j.reset = recent, left_of_block(blocks, j.nth, last)
      if j.reset == 0 then
        -- The block is over and the slate is clean, up to the last failure: an attempt without a
        -- lease is written with the time that it is now, and must stay.
        j.usage, j.upto = count(key, now, '+inf'), last
        if grows then j.past = string.format('w %.0f %.0f', j.nth, last) end
      end
      return j
    end
  end
  j.usage = count(key, j.upto, '+inf')
  return j
end

local function judge_backoff(key, a)
  local free, forget, waits = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), numbers(ARGV[a + 3])
  local members, times, found = read_failures(key)
  local last, counted = times[#times], 0
  if last and (forget == 0 or now - last < forget) then counted = math.min(#members, #waits) end
  local j = { limit = math.max(free, counted) + 1, reset = 0, nth = 0, began = 0, drop = {}, found = found }
  for i = 1, #members - counted do j.drop[i] = members[i] end
  if counted > 0 then
    -- Jitter comes from the token: nobody outside knows it, and whoever looks comes to the same wait.
    local throw = string.byte(members[#members], 1) - 128
    local wait = waits[counted] + math.floor(waits[counted] * ARGV[a + 4] * throw / 12800)
    if now < last + wait then
      j.usage, j.reset = counted, last + wait - now
      return j
    end
  end
  j.usage = counted + count(key, now, '+inf')
  return j
end

-- A bucket of so many tokens, of which so many less a part were missing at a time. A token has as many
-- parts as the bucket takes milliseconds to fill, so nothing is ever rounded.
local function bucket(capacity, refill, tokens, less, at)
  local function missing(time)
    local then_missing = math.min(math.max(tokens * refill - math.min(less, refill - 1), 0), capacity * refill)
    return math.max(then_missing - capacity * math.max(time - at, 0), 0)
  end
  return {
    add = function(time)
      local parts = math.min(missing(time) + refill, capacity * refill)
      tokens = math.ceil(parts / refill)
      less, at = tokens * refill - parts, math.max(at, time)
    end,
    usage = function(time) return math.ceil(missing(time) / refill) end,
    parts = missing,
    room_at = function()
      return math.max(now, at) + math.ceil((missing(now) + refill - capacity * refill) / capacity)
    end,
    write = function() return string.format('b %.0f %.0f %.0f', tokens, less, at) end,
  }
end

-- Counts of the window that begins at `start` and of the one before.
local function counter(limit, window, start, previous, current)
  local function move_on(time)
    local windows = math.floor(math.max(time - start, 0) / window)
    if windows > 0 then
      previous = windows == 1 and current or 0
      start, current = start + windows * window, 0
    end
  end
  -- The rate, times the window so that nothing is rounded.
  local function rate(time)
    move_on(time)
    return previous * (window - math.max(time - start, 0)) + current * window
  end
  return {
    add = function(time)
      move_on(time)
      current = current + 1
    end,
    usage = function(time) return math.floor(rate(time) / window) end,
    parts = rate,
    room_at = function()
      move_on(now)
      local begins, leaving, room = start, previous, limit - current
      if room <= 0 then begins, leaving, room = start + window, current, limit end
      local most = leaving > 0 and math.floor((room * window - 1) / leaving) or window
      return begins + window - math.min(most, window)
    end,
    write = function() return string.format('c %.0f %.0f %.0f', start, previous, current) end,
  }
end

-- Bucket and counter add failures up: first the past, then those that are kept one by one.
local function judge_adding_up(key, a)
  local limit, window, blocks = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), numbers(ARGV[a + 3])
  local again = tonumber(ARGV[a + 4])
  local members, times, found = read_failures(key)
  local letter, x, y, z, nth, began = string.match(found or '', '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local j = { limit = limit, reset = 0, drop = {}, found = found }
  local first, is_bucket = times[1] or now, ARGV[a] == 'bucket'
  if letter == (is_bucket and 'b' or 'c') then
    j.past, x, y, z = found, tonumber(x), tonumber(y), tonumber(z)
    nth, began = tonumber(nth), tonumber(began)
  else
    nth, began = 0, 0
    if is_bucket then x, y, z = 0, 0, 0 else x, y, z = first - first % window, 0, 0 end
  end
  local sum = (is_bucket and bucket or counter)(limit, window, x, y, z)
  local folded = sum.write()
  for i = 1, #members do
    sum.add(times[i])
    -- One that has been noted since then is the newer one.
    local is_newest = nth == 0 or began < times[i]
    if #blocks > 0 and is_newest and sum.usage(times[i]) >= limit then
      nth, began = number_after(blocks, again, nth, began, times[i]), times[i]
    end
    if i <= #members - KEPT then
      j.drop[i] = members[i]
      folded = sum.write()
      j.folded = string.format('%s %.0f %.0f', folded, nth, began)
    end
  end
  -- An admission comes after a block, and notes it: taking back the failure that brought it, as whoever
  -- made it can by logging in, does not undo it.
  if j.past or j.folded or nth > 0 then j.past = string.format('%s %.0f %.0f', folded, nth, began) end
  if #blocks == 0 then nth, began = 0, 0 end
  j.nth, j.began = nth, began

  j.usage = sum.usage(now)
  local parts = sum.parts(now)
  j.thousandths = math.floor(parts / window) * 1000 + math.floor(parts % window * 1000 / window)
  if j.usage >= limit then j.reset = sum.room_at() - now end
  local left = left_of_block(blocks, nth, began)
  if left == -1 or left > j.reset then j.reset = left end
  if j.reset == 0 then
    local in_flight = count(key, now, '+inf')
    j.usage = j.usage + in_flight
    j.thousandths = j.thousandths + in_flight * 1000
  end
  return j
end

local judges = {
  window = judge_window,
  growing = judge_window,
  backoff = judge_backoff,
  bucket = judge_adding_up,
  counter = judge_adding_up,
}

local function judge(key, a)
  return judges[ARGV[a]](key, a)
end

local function adds_up(a)
  return ARGV[a] == 'bucket' or ARGV[a] == 'counter'
end

local function refuses(j)
  return j.reset ~= 0 or j.usage >= j.limit
end

local function remove(key, members)
  local removed = 0
  -- Lua can pass on only so many arguments at once.
  for first = 1, #members, 1000 do
    removed = removed + redis.call('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
  return removed
end

local function is_blocked(key, a)
  local is_window = ARGV[a] == 'window' or ARGV[a] == 'growing'
  if redis.call('ZCARD', key) < (is_window and tonumber(ARGV[a + 1]) or 1) then return false end
  return judge(key, a).reset ~= 0
end

-- Somebody may remember that it is blocked. Where this may not be said, they find out later.
local function announce(key)
  redis.pcall('PUBLISH', ARGV[#ARGV], key)
end

-- Replaces what can go at any time by what it adds up to, so that whoever is refused again and again does
-- not cost more each time.
local function fold(key, j)
  if not j.folded then return end
  -- A server whose memory is full refuses this, and then it has to wait.
  local added = redis.pcall('ZADD', key, -1, j.folded)
  if type(added) == 'table' then return end
  if j.found and j.found ~= j.folded then redis.call('ZREM', key, j.found) end
  remove(key, j.drop)
end

-- How long a key is of use; 0: for ever. `may_block`: a block is in force, or may be with what is in
-- flight.
local function lifetime(a, j, may_block)
  local blocks, again = numbers(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local keep = tonumber(ARGV[a + 5])
  if may_block then
    local keep_full = numbers(ARGV[a + 6])
    keep = keep_full[number_after(blocks, again, j.nth, j.began, now)]
  end
  if keep > 0 and j.nth > 0 and #blocks > 1 then
    local length = blocks[math.min(j.nth, #blocks)]
    if length == 0 then return 0 end
    keep = math.max(keep, j.began + length + again - now)
  end
  return keep
end

-- A key without end is one that blocks for ever, or might when what is in flight fails. If that is past,
-- the key runs out as others do.
local function let_expire(key, a)
  local may_last = string.find(',' .. ARGV[a + 6] .. ',', ',0,', 1, true)
  if not may_last or ARGV[a + 5] == '0' or redis.call('PTTL', key) >= 0 then return end
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not newest then return end
  local j = judge(key, a)
  if refuses(j) then return end
  local keep = lifetime(a, j, false)
  if keep > 0 then redis.call('PEXPIRE', key, math.max(newest - now, 0) + keep) end
end
