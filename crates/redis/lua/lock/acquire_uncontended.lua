-- The shortcut of an acquisition: the lock is free and not barred, or another owner has it, or this
-- hold is over. It answers as `acquire.lua` would, and leaves all other cases to that.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the release record of this hold
-- ARGV[1]  not_after, as in `not_after.lua`, and never 0
-- ARGV[2]  the owner
-- ARGV[3]  the lease in milliseconds
-- ARGV[4]  the end of the sidecar: a space, 0, the lock delay in milliseconds, the owner, the hold, and the
--          label, separated by spaces
-- ARGV[5]  the lease plus the day by which a sidecar outlives it, in milliseconds
--
-- `kind` is 'r' for a re-entrant lock, 's' for a simple one.
--
-- Returns now_us alone if the lock is granted with that as its fence, and was not held before.

if now > ARGV[1] + 0 then return { 'late' } end
-- The acquisition comes after its own release. It does not even read the lock, which that may have
-- ended.
local over = redis.pcall('GET', KEYS[3])
if type(over) == 'string' then return { stamp, 'over' } end
-- A value of another type is not ours; a missing permission must not be overlooked.
if over and not string.find(over.err, 'WRONGTYPE', 1, true) then return over end

local owner = ARGV[2]
local ttl = call('PTTL', KEYS[1])
-- The sidecar before it was overwritten, if it was.
local beside
if ttl ~= -2 then
  local found
  if kind == 'r' then
    found = redis.pcall('HGET', KEYS[1], owner)
  else
    found = redis.pcall('GET', KEYS[1])
    if type(found) == 'string' and found ~= owner then found = false end
  end
  if found == false then return { stamp, 'busy', string.format('%.0f', ttl) } end
elseif now <= MAX_FENCE and string.find(ARGV[4], ' 0 0 ', 1, true) == 1 then
  -- Written before it is read, in one call. `acquire.lua` undoes it if the lock is not granted.
  local side = '1 ' .. stamp .. ' ' .. stamp .. ARGV[4]
  beside = redis.pcall('SET', KEYS[2], side, 'PX', ARGV[5], 'GET')
  local open = not beside
  if type(beside) == 'string' and string.find(beside, ' 0 ', 36, true) == 36 then
    -- Fence and time have sixteen digits (until the year 2286), and nothing bars the lock.
    local last = tonumber(string.sub(beside, 3, 18))
    open = last and last < now
  end
  if open then
    if kind == 'r' then
      call('HSET', KEYS[1], owner, '1')
      call('PEXPIRE', KEYS[1], ARGV[3])
    else
      call('SET', KEYS[1], owner, 'PX', ARGV[3])
    end
    return stamp
  end
end
