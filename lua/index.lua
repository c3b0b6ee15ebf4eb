-- What the scripts of an index share. It takes the place of the line `-- include index.lua`; `call` and `now` are
-- set by then.
--
-- An index is a sorted set of names by the time at which each of them leaves by itself, and a hash with a text for
-- each of them. Both expire when the last one has left.

-- Drops names whose time has come, at most so many: more would take too long.
local function drop_lifted(lifts, notes, most)
  local names = call('ZRANGEBYSCORE', lifts, '-inf', now, 'LIMIT', 0, most)
  if #names > 0 then
    call('ZREM', lifts, unpack(names))
    call('HDEL', notes, unpack(names))
  end
end

local function let_expire(lifts, notes)
  local last = call('ZREVRANGE', lifts, 0, 0, 'WITHSCORES')[2]
  if not last then return end
  for _, key in ipairs({ lifts, notes }) do
    if last == 'inf' then
      call('PERSIST', key)
    else
      call('PEXPIRE', key, string.format('%.0f', math.max(last - now, 1)))
    end
  end
end
