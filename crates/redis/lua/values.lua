-- Reads a named value, or sets it if it is still the one that the caller knows.
--
-- KEYS[1]  the value
-- ARGV[1]  not_after: microseconds of server time after which nothing is done; 0 if unknown
-- ARGV[2]  an id, unused here: setting the same value again changes nothing
-- ARGV[3]  for setting only: '-' if there must be no value, or '=' and the expected value
-- ARGV[4]  for setting only: the new value
--
-- Returns now_us and the value as it is now, or nil.
--
-- A value is kept until it is set again: it is a setting, not a counter.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

-- `MGET` returns nil where `GET` fails: another type counts as absent.
local found = redis.call('MGET', KEYS[1])[1]
if ARGV[3] and (found and '=' .. found or '-') == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[4])
  found = ARGV[4]
end
return { string.format('%.0f', now), found }
