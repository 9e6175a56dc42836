-- Ends one hold of a lock.
--
-- Follows `release_sole_hold.lua`, which documents the arguments.
--
-- Returns now_us and the release record: '1' if the lock is free now, '0' if its owner still holds it, as
-- in Redisson; 'x' if it was not held any more.
--
-- The release record is always set: a repeated release gets the same answer, and the acquisition that it
-- ends is not granted if it comes later.

local owner = ARGV[2]
local hold = string.sub(ARGV[1], -33, -2)
local beside = call('MGET', KEYS[2], KEYS[3])
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
    note(KEYS[2], side, lengthen(KEYS[1], call('PTTL', KEYS[1]), tonumber(ARGV[3])))
    answer = '0'
  else
    call('DEL', KEYS[1])
    -- A user who may not publish can still release; waiters then ask by themselves.
    redis.pcall('PUBLISH', KEYS[4], '0')
    if side.delay > 0 then
      side.owner, side.holds, side.barred = '-', '-', 0
      note(KEYS[2], side, 0)
    end
    answer = '1'
  end
end
call('SET', KEYS[3], answer, 'PX', '20000')
return { stamp, answer }
