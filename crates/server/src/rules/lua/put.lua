-- Replaces the rule set, if its version is still the one that the writer knows.
--
-- KEYS[1]  the set
-- KEYS[2]  the one before it, for servers that start while the set is broken
-- ARGV[1]  the version that the writer expects
-- ARGV[2]  the version that the writer applies: it counts if none can be read here
-- ARGV[3]  the new version
-- ARGV[4..7]  sum, format, by, text
-- ARGV[8]  the channel of change notices
--
-- Returns a word and a version:
--   put, the new one
--   other, the present one       it is not the one that the writer knows
--   stale, the present one       the new one is not above it
--
-- Nothing after the first write may fail: an error does not roll back. The notice may, for lack of
-- permission; servers then find out by polling.

local function number(text)
  if text and #text <= 16 and string.match(text, '^[1-9]%d*$') then
    local value = tonumber(text)
    if value <= 9007199254740991 then return value end
  end
end

local whole = redis.call('TYPE', KEYS[1]).ok == 'hash'
  and redis.call('HSTRLEN', KEYS[1], 'version') <= 16
local stored = whole and number(redis.call('HGET', KEYS[1], 'version'))
local present = stored or tonumber(ARGV[2])
local shown = string.format('%.0f', present)
if present ~= tonumber(ARGV[1]) then return { 'other', shown } end
if tonumber(ARGV[3]) <= present then return { 'stale', shown } end

local clock = redis.call('TIME')
local at = string.format('%.0f', clock[1] * 1000000 + clock[2])
if stored then
  redis.call('UNLINK', KEYS[2])
  redis.call('RENAME', KEYS[1], KEYS[2])
else
  redis.call('UNLINK', KEYS[1])
end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'sum', ARGV[4], 'format', ARGV[5],
  'at', at, 'by', ARGV[6], 'text', ARGV[7])
redis.pcall('PUBLISH', ARGV[8], ARGV[3])
return { 'put', ARGV[3] }
