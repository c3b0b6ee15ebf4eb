-- Writes a failure that was decided elsewhere, a while ago, to all of the given counters, whatever they
-- allow.
--
-- KEYS     the counters
-- ARGV[1]  the attempt's token
-- ARGV[2]  the time in milliseconds since 1970; empty: the server's own
-- ARGV[3]  how long ago it failed, in milliseconds
-- ARGV[4]  the spelling of the user, see counters.lua; empty: the normal form
--
-- Reply: in how many counters it was new, and the blocks that began, as in settle.lua.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, recorded = tonumber(ARGV[2]), 0
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local failed = math.max(now - ARGV[3], 1)

-- include counters.lua

local reply = {}
for i, l in ipairs(limits) do
  local key = KEYS[i]
  local expires, was_blocked = call('PTTL', key), is_blocked(key, l)
  if call('ZADD', key, 'NX', failed, ARGV[1] .. suffix(ARGV[4], i)) == 1 then
    recorded = recorded + 1
    if not was_blocked then report_block(reply, i - 1, key, l) end
    local j = judge(key, l)
    fold(key, j)
    local keeps = lifetime(l, j, refuses(j))
    -- Never sooner than before: attempts in flight may be newer than this failure.
    if keeps == 0 or expires == -2 or (expires >= 0 and expires < keeps) then
      set_lifetime(key, keeps)
    end
  end
end
return #reply == 0 and recorded or { recorded, unpack(reply) }
