-- The short cut of an acquisition: the lock is free and nothing is against it, or somebody else has it,
-- or it is over. It answers as `acquire.lua` would, and whatever else there is it leaves to that.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the release record of this hold
-- ARGV[1]  not_after, as in `not_after.lua`, and never 0
-- ARGV[2]  the owner
-- ARGV[3]  the lease in milliseconds
-- ARGV[4]  the end of the sidecar: a space, 0, the lock-delay in milliseconds, the owner, the hold, and what
--          the holder says of itself, with spaces between
-- ARGV[5]  the lease and the day by which a sidecar outlives it, in milliseconds
--
-- `kind` is 'r' for a re-entrant lock, 's' for a simple one.
--
-- Returns now_us alone if it is granted with that for a fence, and not held before.

if now > ARGV[1] + 0 then return { 'late' } end
-- An acquisition that was slower than its own release. It does not even look at the lock, which may
-- have ended by that.
local over = redis.pcall('GET', KEYS[3])
if type(over) == 'string' then return { stamp, 'over' } end
-- What is no string is none of ours; that it may not be read is not to be overlooked.
if over and not string.find(over.err, 'WRONGTYPE', 1, true) then return over end

local owner = ARGV[2]
local ttl = call('PTTL', KEYS[1])
-- What the sidecar said before it was written over, if it was.
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
  -- Written before it is read, which takes one call. What follows undoes it if it was not to be.
  local side = '1 ' .. stamp .. ' ' .. stamp .. ARGV[4]
  beside = redis.pcall('SET', KEYS[2], side, 'PX', ARGV[5], 'GET')
  local open = not beside
  if type(beside) == 'string' and string.find(beside, ' 0 ', 36, true) == 36 then
    -- Fence and time have sixteen digits, as until the year 2286, and nothing bars the lock.
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
