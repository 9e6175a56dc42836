-- Takes a lock, or once more for its owner.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the latch of this hold
-- ARGV[3]  'r' for a re-entrant lock, 's' for a simple one
-- ARGV[4]  the owner
-- ARGV[5]  the hold: the id of this acquisition
-- ARGV[6]  the lease in milliseconds
-- ARGV[7]  the lock-delay in milliseconds
-- ARGV[8]  what the holder says of itself
-- ARGV[9]  the lease and the day by which a sidecar outlives it, in milliseconds
--
-- Comes after `acquire_short.lua`, which has read `beside` and `ttl`.
--
-- Returns now_us and
--   'granted', the fence, how often it is held
--   'busy', the milliseconds left, negative if there is no end
--   'over' if this hold was released already, 'deep' if it is held too often, 'foreign' if what is
--   there is no lock of this kind.
--
-- As Redisson's, but for two things: a lease never becomes shorter, so that no hold of one owner can
-- cut another's short; and a hold that is sent again counts once.

local kind, owner, hold = ARGV[3], ARGV[4], ARGV[5]
local lease, delay = tonumber(ARGV[6]), tonumber(ARGV[7])

local side, found = read(beside[1]), false
local free = ttl == -2
if free then
  if side and side.barred >= now_ms and side.barred > 0 then
    return { stamp, 'busy', fmt('%.0f', side.barred - now_ms) }
  end
else
  found = look(kind, KEYS[1], owner)
  if type(found) == 'table' then
    if string.find(found.err, 'WRONGTYPE', 1, true) then return { stamp, 'foreign' } end
    return found
  end
  if type(found) == 'string' then return { stamp, 'foreign' } end
  if not found then return { stamp, 'busy', fmt('%.0f', ttl) } end
end

local known = not free and counts(side, owner, hold)
if not free and not known then
  if kind == 's' then return { stamp, 'busy', fmt('%.0f', ttl) } end
  if found >= 256 then return { stamp, 'deep' } end
end

local depth = found
if not known then
  if not free and side and side.owner == owner then
    side.holds = side.holds .. ',' .. hold
  else
    local fence = now
    if side and side.fence >= fence then fence = side.fence + 1 end
    if fence > MAX_FENCE then fence = MAX_FENCE end
    side = {
      fence = fence, since = stamp, barred = 0, delay = delay, owner = owner, holds = hold, label = ARGV[8],
    }
  end
  if kind == 'r' then
    depth = call('HINCRBY', KEYS[1], owner, 1)
  else
    call('SET', KEYS[1], owner, 'PX', ARGV[6])
    depth, ttl, free = 1, lease, false
  end
end
ttl = lengthen(KEYS[1], free and -1 or ttl, lease)
note(KEYS[2], side, ttl)
return { stamp, 'granted', fmt('%.0f', side.fence), fmt('%d', depth) }
