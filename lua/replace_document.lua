-- Writes a new version of the document, if the newest one is the expected one.
--
-- KEYS[1]  the document, see document.lua
-- ARGV[1]  which version is expected to be the newest; 0: none
-- ARGV[2]  the text of the new version
-- ARGV[3]  how many versions are kept
-- ARGV[4]  how many bytes they may have together, unless the newest alone has more
-- ARGV[5]  the channel on which the new version is announced
--
-- Reply: 1 and the number of the new version; or 0 and, if there is a document, its number and text.

local call, key, text = redis.call, KEYS[1], ARGV[2]
local expected, newest = tonumber(ARGV[1]), tonumber(call('HGET', key, 'newest') or 0)
local version = expected + 1
if newest ~= expected then
  -- A call that is repeated because its reply was lost finds its own version, or one that is the same.
  if call('HGET', key, version) == text then return { 1, version } end
  return newest == 0 and { 0 } or { 0, newest, call('HGET', key, newest) }
end

local oldest = tonumber(call('HGET', key, 'oldest') or version)
-- All of it in one command: a server whose memory is full refuses it.
call('HSET', key, version, text, 'newest', version, 'oldest', oldest)
local bytes, first = #text, version
while first > oldest and version - first + 1 < tonumber(ARGV[3]) do
  bytes = bytes + call('HSTRLEN', key, first - 1)
  if bytes > tonumber(ARGV[4]) then break end
  first = first - 1
end
for past = oldest, first - 1 do call('HDEL', key, past) end
call('HSET', key, 'oldest', first)
-- Where publishing is not permitted, versions are polled. No counter has a name like this.
redis.pcall('PUBLISH', ARGV[5], 'document ' .. version)
return { 1, version }
