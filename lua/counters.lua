-- What the scripts share: how a counter stands under each algorithm, and how long it is kept. It takes the
-- place of the line `-- include counters.lua`; `call` and `now` are set by then.
--
-- A counter is a sorted set. Its members with a score above zero are attempt tokens. A score in the past is
-- the time at which the attempt failed. A score in the future is the end of its lease: the attempt is in
-- flight, and becomes a failure by itself when the lease ends. Times are whole milliseconds. A score of half a
-- millisecond less stands for the same time and for a spelling that is not known yet, see below.
--
-- One more member, with the score -1, may hold the past: a summary of failures that are no longer kept one
-- by one.
--   'w nth began'                 sliding window: the last block is the nth in a row and began then
--   'b tokens less at nth began'  token bucket: what was missing at a time, and the last block
--   'c start previous current nth began'
--                                 sliding-window counter: counts of two windows, and the last block
-- An nth of 0 is no block. What another algorithm has left is ignored, and dropped at the next admission.
--
-- `limits` has one table for each counter:
--   algorithm  'window', 'growing' (a window whose blocks grow), 'backoff', 'bucket' or 'counter'
--   limit      how many attempts may count; backoff: how many failures cost no wait
--   window     how long a failure counts, in milliseconds; 0: forever. bucket: how long an empty one takes
--              to fill. backoff: after how long without a failure all are forgotten
--   blocks     how long reaching the limit blocks, in milliseconds; 0: forever. Several for blocks that grow,
--              none for no block. backoff: the waits
--   again      how soon after the end of the last block the next one is longer. backoff: jitter in percent
--   keep       how long the key is kept after this, in milliseconds; 0: forever
--   keep_full  the same while a block is or may be in force, for each of the blocks
--   shadow     whether the counter counts and never refuses
-- `channel` is where the names of counters are published that were blocked and no longer are.

-- insert limits, channel

-- How many of the newest failures bucket and counter keep one by one.
local KEPT = 8

-- A failure whose user was not spelled in the normal form has a suffix of eight bytes behind its token, a hash
-- of the spelling. A list of spellings has eight bytes for each counter, zeros for one without a user.
--
-- An attempt that is reserved in another spelling than the normal form gets its suffix when it fails, since the
-- app may identify the account until then. Until then it is pending: no success of another attempt takes it
-- back, also if its lease has ended. Compared with whole milliseconds, half of one less makes no difference.
local function suffix(spellings, i)
  local own = string.sub(spellings, i * 8 - 7, i * 8)
  return (#own < 8 or own == '\0\0\0\0\0\0\0\0') and '' or own
end

-- Tokens, and the same as failures of a spelling.
local function with_spelling(tokens, spelling)
  if spelling == '' then return tokens end
  local both = {}
  for i = 1, #tokens do both[i * 2 - 1], both[i * 2] = tokens[i], tokens[i] .. spelling end
  return both
end

-- The time of a score, and whether the spelling is pending.
local function time_of(score)
  local time = math.ceil(score)
  return time, time ~= tonumber(score)
end

-- Gives a failure its spelling.
local function spell(key, token, spelling)
  local at = call('ZSCORE', key, token)
  if at then
    call('ZADD', key, string.format('%.0f', time_of(at)), token .. spelling)
    call('ZREM', key, token)
  end
end

-- Marks that the spelling of an attempt is not known before it fails.
local function set_pending(key, token)
  local at = call('ZSCORE', key, token)
  if not at then return end
  local time, is_pending = time_of(at)
  if not is_pending then call('ZADD', key, string.format('%.1f', time - 0.5), token) end
end

-- Whether a summary has a capital: failures of other spellings than the normal form are part of it.
local function is_mixed(summary)
  return summary and string.find(summary, '^%u') ~= nil
end

local function count_between(key, after, to)
  return call('ZCOUNT', key, string.format('(%.0f', after), to)
end

-- When the window that ends at `stop` begins; below zero is the past.
local function beginning(stop, window)
  return window > 0 and math.max(stop - window, 0) or 0
end

-- Failures, the oldest first, with their times, the past, and whether any of these is of another spelling than
-- the normal form, or of one that is not known.
local function read_failures(key)
  local read = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES')
  local members, times, past, mixed = {}, {}, nil, false
  for i = 1, #read, 2 do
    local time, is_pending = time_of(read[i + 1])
    if time > 0 then
      members[#members + 1], times[#times + 1] = read[i], time
      mixed = mixed or is_pending or #read[i] > 16
    else
      past = read[i]
      mixed = mixed or is_mixed(past)
    end
  end
  return members, times, past, mixed
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

-- Each of these judges how a counter stands:
--   usage, limit  attempts that count, and how many may; without those in flight if it is blocked
--   thousandths   the usage in thousandths, where it has a fraction
--   reset         milliseconds until the block lifts; -1: never; 0: not blocked
--   nth, began    the last block
-- and what an admission leaves of it:
--   from, upto    failures with these scores are dropped,
--   drop          and these members,
--   found, past   and the past that was found is replaced by this one
--   folded        the summary of the members to drop, if they can go at any time

local function judge_window(key, l)
  local limit, window, blocks = l.limit, l.window, l.blocks
  local grows = l.algorithm == 'growing'
  local j = { limit = limit, reset = 0, nth = 0, began = 0, from = '-inf', upto = beginning(now, window) }
  -- As in reserve.lua: with so few it is neither blocked nor busy.
  if not grows and call('ZCARD', key) < limit then
    j.usage = count_between(key, j.upto, '+inf')
    return j
  end
  if grows then
    j.from = '(0'
    j.found = call('ZRANGEBYSCORE', key, '-inf', 0)[1]
    local nth, began = string.match(j.found or '', '^[wW] (%d+) (%d+)$')
    if nth then j.nth, j.began, j.past = tonumber(nth), tonumber(began), j.found end
  end
  local newest = call('ZREVRANGEBYSCORE', key, now, '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if newest and #blocks == 0 then
    local recent = count_between(key, j.upto, now)
    if recent >= limit then
      j.usage, j.reset = recent, -1
      if window > 0 then
        -- There is room when fewer than the limit are left.
        local gives_way = call('ZREVRANGEBYSCORE', key, now, '(0', 'WITHSCORES', 'LIMIT', limit - 1, 1)
        j.reset = time_of(gives_way[2]) + window - now
      end
      return j
    end
  elseif newest then
    local last = time_of(newest)
    local recent = count_between(key, beginning(last, window), newest)
    if recent >= limit then
      j.nth = number_after(blocks, l.again, j.nth, j.began, last)
      j.began = last
      j.usage, j.reset = recent, left_of_block(blocks, j.nth, last)
      if j.reset == 0 then
        -- The block is over, and failures up to the last one no longer count: an attempt without a lease
        -- is written with the current time, and must stay.
        j.usage, j.upto = count_between(key, now, '+inf'), last
        if grows then
          local _, _, _, mixed = read_failures(key)
          j.past = string.format('%s %.0f %.0f', mixed and 'W' or 'w', j.nth, last)
        end
      end
      return j
    end
  end
  j.usage = count_between(key, j.upto, '+inf')
  return j
end

local function judge_backoff(key, l)
  local free, forget, waits = l.limit, l.window, l.blocks
  local members, times, found = read_failures(key)
  local last, counted = times[#times], 0
  if last and (forget == 0 or now - last < forget) then counted = math.min(#members, #waits) end
  local j = { limit = math.max(free, counted) + 1, reset = 0, nth = 0, began = 0, drop = {}, found = found }
  for i = 1, #members - counted do j.drop[i] = members[i] end
  if counted > 0 then
    -- Jitter comes from the token: it is secret, and every store computes the same wait.
    local throw = string.byte(members[#members], 1) - 128
    local wait = waits[counted] + math.floor(waits[counted] * l.again * throw / 12800)
    if now < last + wait then
      j.usage, j.reset = counted, last + wait - now
      return j
    end
  end
  j.usage = counted + count_between(key, now, '+inf')
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
    write = function(mixed) return string.format('%s %.0f %.0f %.0f', mixed and 'B' or 'b', tokens, less, at) end,
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
    write = function(mixed)
      return string.format('%s %.0f %.0f %.0f', mixed and 'C' or 'c', start, previous, current)
    end,
  }
end

-- Bucket and counter sum failures up: first the past, then those that are kept one by one.
local function judge_summary(key, l)
  local limit, window, blocks, again = l.limit, l.window, l.blocks, l.again
  local members, times, found, mixed = read_failures(key)
  local letter, x, y, z, nth, began = string.match(found or '', '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local j = { limit = limit, reset = 0, drop = {}, found = found }
  local first, is_bucket = times[1] or now, l.algorithm == 'bucket'
  if string.lower(letter or '') == (is_bucket and 'b' or 'c') then
    j.past, x, y, z = found, tonumber(x), tonumber(y), tonumber(z)
    nth, began = tonumber(nth), tonumber(began)
  else
    nth, began = 0, 0
    if is_bucket then x, y, z = 0, 0, 0 else x, y, z = first - first % window, 0, 0 end
  end
  local sum = (is_bucket and bucket or counter)(limit, window, x, y, z)
  local folded = sum.write(mixed)
  for i = 1, #members do
    sum.add(times[i])
    -- One that has been noted since then is the newer one.
    local is_newest = nth == 0 or began < times[i]
    if #blocks > 0 and is_newest and sum.usage(times[i]) >= limit then
      nth, began = number_after(blocks, again, nth, began, times[i]), times[i]
    end
    if i <= #members - KEPT then
      j.drop[i] = members[i]
      folded = sum.write(mixed)
      j.folded = string.format('%s %.0f %.0f', folded, nth, began)
    end
  end
  -- An admission comes after a block, and notes it: taking back the failure that caused it, as its user can
  -- by logging in, does not undo it.
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
    local in_flight = count_between(key, now, '+inf')
    j.usage = j.usage + in_flight
    j.thousandths = j.thousandths + in_flight * 1000
  end
  return j
end

local judges = {
  window = judge_window,
  growing = judge_window,
  backoff = judge_backoff,
  bucket = judge_summary,
  counter = judge_summary,
}

local function judge(key, l)
  return judges[l.algorithm](key, l)
end

local function refuses(j)
  return j.reset ~= 0 or j.usage >= j.limit
end

local function remove(key, members)
  local removed = 0
  -- Lua passes on a limited number of arguments.
  for first = 1, #members, 1000 do
    removed = removed + call('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
  return removed
end

local function is_blocked(key, l)
  local is_window = l.algorithm == 'window' or l.algorithm == 'growing'
  if call('ZCARD', key) < (is_window and l.limit or 1) then return false end
  return judge(key, l).reset ~= 0
end

local function is_newest_failure(key, token, spelling)
  local newest = call('ZREVRANGEBYSCORE', key, now, '(0', 'LIMIT', 0, 1)[1]
  return newest == token or newest == token .. spelling
end

-- Adds a counter that is blocked to the reply of a script that wrote a failure.
local function report_block(reply, position, key, l)
  if not is_blocked(key, l) then return end
  local j = judge(key, l)
  for _, value in ipairs({ position, j.usage, j.limit, j.reset, j.thousandths or j.usage * 1000 }) do
    reply[#reply + 1] = value
  end
end

-- The id that a server takes at each start; nil where INFO is not permitted.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%x+)') or nil
end

-- Processes may have cached that it is blocked. Where publishing is not permitted, they revalidate.
local function publish(key)
  redis.pcall('PUBLISH', channel, key)
end

-- Replaces what can be dropped at any time by its summary, so that refusing again and again does not cost
-- more each time.
local function fold(key, j)
  if not j.folded then return end
  -- A server whose memory is full refuses this; then it is done later.
  local added = redis.pcall('ZADD', key, -1, j.folded)
  if type(added) == 'table' then return end
  if j.found and j.found ~= j.folded then call('ZREM', key, j.found) end
  remove(key, j.drop)
end

-- How long a key is kept; 0: forever. `may_block`: a block is in force, or may be with what is in flight.
local function lifetime(l, j, may_block)
  local blocks, keep = l.blocks, l.keep
  if may_block then keep = l.keep_full[number_after(blocks, l.again, j.nth, j.began, now)] end
  if keep > 0 and j.nth > 0 and #blocks > 1 then
    local length = blocks[math.min(j.nth, #blocks)]
    if length == 0 then return 0 end
    keep = math.max(keep, j.began + length + l.again - now)
  end
  return keep
end

local function set_lifetime(key, keep)
  if keep == 0 then
    call('PERSIST', key)
  else
    call('PEXPIRE', key, keep)
  end
end

-- A key that is kept forever blocks forever, or might when what is in flight fails. If that is over, the key
-- expires as others do.
local function let_expire(key, l)
  local may_last = false
  for _, keep in ipairs(l.keep_full) do may_last = may_last or keep == 0 end
  if not may_last or l.keep == 0 or call('PTTL', key) >= 0 then return end
  local newest = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not newest then return end
  local j = judge(key, l)
  if refuses(j) then return end
  local keep = lifetime(l, j, false)
  if keep > 0 then call('PEXPIRE', key, math.max(time_of(newest) - now, 0) + keep) end
end
