-- Reads a value that is kept under a name, or sets it if it still is what the caller knows.
--
-- KEYS[1]  the value
-- ARGV[1]  not_after: microseconds of server time from which nothing is to be done; 0 if unknown
-- ARGV[2]  an id, which is of no use here: setting the same value again changes nothing
-- ARGV[3]  for setting only: '-' if there must be nothing, or '=' and what must be there
-- ARGV[4]  for setting only: what shall be there
--
-- Returns now_us and the value as it is now, or nil.
--
-- A value is kept until it is set again: it says how to count, and counts nothing itself.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

-- `MGET` says nil where `GET` would fail: what is no string is no value.
local found = redis.call('MGET', KEYS[1])[1]
if ARGV[3] and (found and '=' .. found or '-') == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[4])
  found = ARGV[4]
end
return { string.format('%.0f', now), found }
