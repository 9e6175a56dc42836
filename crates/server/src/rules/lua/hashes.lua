-- Reads rules that other programs keep as hashes.
--
-- KEYS     the hashes
-- ARGV[1]  the longest value that is sent
-- ARGV[2..]  the fields
--
-- Returns for each key its type and, of a hash, its values in the order of the fields, each a string
-- or nil; or `long` and a field, if that is longer.

local most = tonumber(ARGV[1])
local fields = {}
for i = 2, #ARGV do fields[i - 1] = ARGV[i] end
local reply = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local row = { kind }
  if kind == 'hash' then
    for _, field in ipairs(fields) do
      if redis.call('HSTRLEN', key, field) > most then row = { 'long', field } end
    end
    if row[1] == 'hash' then
      row = redis.call('HMGET', key, unpack(fields))
      table.insert(row, 1, 'hash')
    end
  end
  reply[i] = row
end
return reply
