-- Finds one version for all servers, as rules in hashes have none.
--
-- KEYS[1]  the last agreement: a version, a space, a digest
-- ARGV[1]  the digest of the rules that the caller has read
-- ARGV[2]  the least version that the caller can use
--
-- Returns the version: that of the digest if it was agreed on, else the next above all and above the
-- server's clock in milliseconds. So it rises even if the agreement is lost.

local clock = redis.call('TIME')
local floor = math.max(tonumber(ARGV[2]), clock[1] * 1000 + math.floor(clock[2] / 1000))
local found = redis.call('MGET', KEYS[1])[1]
if found and #found <= 64 then
  local version, digest = string.match(found, '^([1-9]%d*) (%x+)$')
  version = tonumber(version)
  if version and version < 9007199254740991 then
    if digest == ARGV[1] and version >= tonumber(ARGV[2]) then
      return string.format('%.0f', version)
    end
    floor = math.max(floor, version + 1)
  end
end
local new = string.format('%.0f', floor)
redis.call('SET', KEYS[1], new .. ' ' .. ARGV[1])
return new
