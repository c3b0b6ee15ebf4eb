-- Writes a block back that another server has reported, and that this one does not know: it is a new primary
-- that had not received it, or was started without its data.
--
-- KEYS[1]  the counter
-- ARGV[1]  the run id of the server that reported the block
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  milliseconds until the block lifts; -1: never
-- ARGV[4]  the usage that was reported
--
-- Reply: the run id of this server, if the counter is blocked now. Empty if this is the server that reported
-- the block: it was lifted here. The run id as given if the block is lost and can't be written.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, left = tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- include counters.lua

local key, l, server = KEYS[1], limits[1], run_id()
if not server or server == ARGV[1] then return '' end
if judge(key, l).reset ~= 0 then return server end
-- A script must not run for long.
if l.limit > 10000 then return ARGV[1] end

-- Failures all at one time. The first byte of a token is the jitter of a back-off: none. No token of an
-- attempt is like these. In which spelling the attempts failed is lost, so no success takes them back.
local function write_failures(count, at)
  for i = 1, count do
    call('ZADD', key, string.format('%.1f', at - 0.5), string.format('\128restored%07d', i))
  end
end

-- The shortest block that lasts as long as what is left, and when it began.
local function find_block(blocks)
  for nth, length in ipairs(blocks) do
    if length == 0 then return nth, now end
    if left >= 0 and length >= left then return nth, now + left - length end
  end
  return #blocks, now
end

-- What failed since the block was lost is covered by it.
call('ZREMRANGEBYSCORE', key, '-inf', now)
local nth, began = 0, 0
if l.algorithm == 'backoff' then
  local failures = math.max(tonumber(ARGV[4]), 1)
  while failures < #l.blocks and l.blocks[failures] < left do failures = failures + 1 end
  write_failures(failures, now - math.max(l.blocks[failures] - left, 0))
else
  if #l.blocks > 0 then nth, began = find_block(l.blocks) end
  local past
  if l.algorithm == 'bucket' then
    -- Without a block, a token is there when the block lifts.
    local refill, capacity = l.window, l.limit
    local missing = math.min((capacity - 1) * refill + capacity * left, capacity * refill)
    if left < 0 then missing = capacity * refill end
    local tokens = math.ceil(missing / refill)
    past = string.format('B %.0f %.0f %.0f', tokens, tokens * refill - missing, now)
  elseif l.algorithm == 'counter' then
    -- Without a block, a full window makes room a millisecond after its end.
    local start = left < 0 and now or math.min(now + left - l.window - 1, now)
    past = string.format('C %.0f 0 %.0f', start, l.limit)
  else
    local at = nth > 0 and began or now
    if nth == 0 and l.window > 0 then at = math.min(now + left - l.window, now) end
    write_failures(l.limit, math.max(at, 1))
    if l.algorithm == 'growing' then past = 'W' end
  end
  if past then call('ZADD', key, -1, string.format('%s %.0f %.0f', past, nth, began)) end
end

local j = judge(key, l)
set_lifetime(key, lifetime(l, j, true))
return j.reset ~= 0 and server or ARGV[1]
