-- Ends one hold of a lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the latch of this hold
-- KEYS[4]  the channel
-- ARGV[3]  'r' for a re-entrant lock, 's' for a simple one
-- ARGV[4]  the owner
-- ARGV[5]  the hold
-- ARGV[6]  the lease in milliseconds, for holds that are left
-- ARGV[7]  for how many milliseconds the latch lives
-- ARGV[8]  'PUBLISH' or 'SPUBLISH'
--
-- Comes after `release_short.lua`, which has read `beside`.
--
-- Returns now_us and what the latch says: '1' if the lock is free now, '0' if its owner still holds it,
-- as Redisson's do; 'x' if it was not held any more.
--
-- The latch is set whatever the answer: the same release is answered alike when it comes again, and
-- the acquisition that it ends is not granted should it come later.

local kind, owner, hold = ARGV[3], ARGV[4], ARGV[5]
if beside[2] then return { stamp, beside[2] } end

local found, side = look(kind, KEYS[1], owner), read(beside[1])
local answer = 'x'
if type(found) == 'number' and counts(side, owner, hold) then
  if found > 1 then
    call('HINCRBY', KEYS[1], owner, -1)
    local rest = {}
    for id in string.gmatch(side.holds, '[^,]+') do
      if id ~= hold then rest[#rest + 1] = id end
    end
    side.holds = rest[1] and concat(rest, ',') or '-'
    note(KEYS[2], side, lengthen(KEYS[1], call('PTTL', KEYS[1]), tonumber(ARGV[6])))
    answer = '0'
  else
    call('DEL', KEYS[1])
    -- A user who may not publish releases all the same; who waits then asks by itself.
    redis.pcall(ARGV[8], KEYS[4], '0')
    if side.delay > 0 then
      side.owner, side.holds, side.barred = '-', '-', 0
      note(KEYS[2], side, 0)
    end
    answer = '1'
  end
end
call('SET', KEYS[3], answer, 'PX', ARGV[7])
return { stamp, answer }
