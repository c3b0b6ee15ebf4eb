-- Reads a version of the document.
--
-- KEYS[1]  the document: a hash with the number of its newest version, of the oldest one that is kept, and the text
--          of each version under its number
-- ARGV[1]  which version; empty: the newest
--
-- Reply: its number and its text; nil if there is none.

local version = ARGV[1] ~= '' and ARGV[1] or redis.call('HGET', KEYS[1], 'newest')
local text = version and redis.call('HGET', KEYS[1], version)
return text and { tonumber(version), text }
