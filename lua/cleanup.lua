-- Takes every failed attempt of a spelling out of the main counters and out of any number of others, and drops
-- the main counters' summaries, if they are of that spelling too.
--
-- Attempts in flight stay, and so does everything in the other counters that is not in a main one. With
-- tokens, only counters that hold one of them are main ones, so that an attempt cleans up once, however
-- often its success is reported.
--
-- KEYS     the main counters, then the others
-- ARGV[1]  the tokens of one attempt, which is taken out too, failed or in flight, 16 bytes each; empty:
--          none
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  how many are main counters
-- ARGV[4]  how long ago the attempt succeeded, in milliseconds: what failed since stays
-- ARGV[5]  the spelling of the user, see counters.lua; empty: the normal form; '*': every spelling
--
-- Reply: the tokens of the failed attempts that were taken out, for counters on another server. If blocks ended, a
-- table behind them: the positions of their counters, from 0.

-- Locals, since a global is looked up by name at each use. Until counters.lua is included, loops over the
-- counters are written out for each policy, see unroll.rs.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
-- insert count, plain_settle, limit
-- A number by arithmetic: tonumber takes longer.
local attempt, mains = ARGV[1], ARGV[3] + 0

-- Most logins succeed at once: the main counters hold this attempt and nothing else, and no window is full.
-- Then only this attempt has to be taken out, and there is nothing to publish.
local is_sparse = plain_settle and ARGV[5] == '' and attempt ~= '' and #attempt <= 32
for i = 1, count do
  if is_sparse then
    local size = call('ZCARD', KEYS[i])
    is_sparse = size < limit[i] and (size <= 1 or i > mains)
  end
end
if is_sparse then
  -- One token is named twice: that costs less than a table of them.
  local first, last = string.sub(attempt, 1, 16), string.sub(attempt, -16)
  for i = 1, count do
    call('ZREM', KEYS[i], first, last)
  end
  return {}
end

local now, own = tonumber(ARGV[2]), {}
for first = 1, #attempt, 16 do own[#own + 1] = string.sub(attempt, first, first + 15) end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local was_blocked = {}
for i, l in ipairs(limits) do was_blocked[i] = is_blocked(KEYS[i], l) end

local function is_main(key, spelling)
  for _, token in ipairs(with_spelling(own, spelling)) do
    if call('ZSCORE', key, token) then return true end
  end
  return #own == 0
end

local every_spelling = ARGV[5] == '*'
local removed, tokens, others = {}, { unpack(own) }, {}
for i = 1, mains do
  local spelling = suffix(ARGV[5], i)
  others[i] = {}
  if is_main(KEYS[i], spelling) then
    local read = call('ZRANGEBYSCORE', KEYS[i], '-inf', now - ARGV[4], 'WITHSCORES')
    for j = 1, #read, 2 do
      local member, its_spelling = read[j], string.sub(read[j], 17)
      local time, is_pending = time_of(read[j + 1])
      if time <= 0 then
        -- Of a summary, it is only known whether all of it had the normal form.
        if every_spelling or spelling == '' and not is_mixed(member) then table.insert(others[i], member) end
      elseif every_spelling or its_spelling == spelling and not is_pending then
        local token = string.sub(member, 1, 16)
        removed[#removed + 1], tokens[#tokens + 1] = token, token
        if its_spelling ~= spelling then table.insert(others[i], member) end
      end
    end
  end
end

if every_spelling then
  -- The same attempts in other counters, where they may have failed at another time.
  local is_removed = {}
  for _, token in ipairs(removed) do is_removed[token] = true end
  for i = 1, count do
    others[i] = others[i] or {}
    for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[i], '(0', '+inf')) do
      if #member > 16 and is_removed[string.sub(member, 1, 16)] then table.insert(others[i], member) end
    end
  end
end

local lifted = {}
for i, l in ipairs(limits) do
  local key = KEYS[i]
  local left = remove(key, with_spelling(tokens, suffix(ARGV[5], i))) + remove(key, others[i] or {})
  if left > 0 then let_expire(key, l) end
  if was_blocked[i] and not is_blocked(key, l) then
    publish(key)
    lifted[#lifted + 1] = i - 1
  end
end
if #lifted > 0 then removed[#removed + 1] = lifted end
return removed
