-- Reads the rule set, unless it is the one that the caller knows.
--
-- KEYS[1]  the set, a hash: see docs/keys.md
-- ARGV[1]  the set that the caller knows: version, space, sum; or empty
-- ARGV[2]  the longest text that is sent
--
-- Returns a word and its details:
--   none                                   there is no set
--   kind, its type                         it is not a hash
--   long, a field, its length              a field is longer than any of ours
--   same                                   the caller knows it
--   set, version, sum, format, at, by, text   each as stored, or nil
--
-- Lengths are checked first, so that nothing long is copied only to be refused.

local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return { 'none' } end
if kind ~= 'hash' then return { 'kind', kind } end
local names = { 'version', 'sum', 'format', 'at', 'by', 'text' }
local most = { 16, 40, 8, 20, 512, tonumber(ARGV[2]) }
for i, name in ipairs(names) do
  local length = redis.call('HSTRLEN', KEYS[1], name)
  if length > most[i] then return { 'long', name, string.format('%.0f', length) } end
end
local head = redis.call('HMGET', KEYS[1], 'version', 'sum')
if head[1] and head[2] and head[1] .. ' ' .. head[2] == ARGV[1] then return { 'same' } end
local reply = redis.call('HMGET', KEYS[1], unpack(names))
table.insert(reply, 1, 'set')
return reply
