-- Frees a lock of any holder.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the channel
-- ARGV[3]  'PUBLISH' or 'SPUBLISH'
--
-- Returns now_us and the description before. A value that is not a lock stays. The sidecar stays,
-- for its fence, without an owner.

local said = { stamp, describe(KEYS[1], KEYS[2], KEYS[3]) }
if said[2] == 'hash' or said[2] == 'string' then
  call('DEL', KEYS[1])
  redis.pcall(ARGV[3], KEYS[3], '0')
end
local side = read(call('MGET', KEYS[2])[1])
if said[2] ~= 'other' and side then
  side.owner, side.holds, side.barred = '-', '-', 0
  note(KEYS[2], side, 0)
end
return said
