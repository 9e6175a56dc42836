-- Acquires a lock, or re-enters it.
--
-- Follows `acquire_uncontended.lua`, which documents the arguments and has read the release record,
-- `ttl` and perhaps the sidecar.
--
-- Returns now_us and
--   'granted', the fence, the number of holds
--   'busy', the milliseconds left, negative if there is no end
--   'over' if this hold was released already, 'deep' if it is held too often, 'foreign' if the value
--   is not a lock of this kind.
--
-- Differs from Redisson in two things: a lease never becomes shorter, so that no hold of one owner can
-- cut another's short; and a hold that is sent again counts once.

local lease = tonumber(ARGV[3])
local delay, hold, label = match(ARGV[4], '^ 0 (%d+) %S+ (%S+) (.*)$')
delay = tonumber(delay)

-- A value that is not a string counts as absent, also for `MGET`.
local written = type(beside) == 'string'
local side, found = read(written and beside or call('MGET', KEYS[2])[1]), false
local free = ttl == -2
if free then
  if side and side.barred >= now_ms and side.barred > 0 then
    if written then call('SET', KEYS[2], beside, 'PX', fmt('%.0f', side.barred - now_ms + DAY)) end
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
      fence = fence, since = stamp, barred = 0, delay = delay, owner = owner, holds = hold, label = label,
    }
  end
  if kind == 'r' then
    depth = call('HINCRBY', KEYS[1], owner, 1)
  else
    call('SET', KEYS[1], owner, 'PX', ARGV[3])
    depth, ttl, free = 1, lease, false
  end
end
ttl = lengthen(KEYS[1], free and -1 or ttl, lease)
note(KEYS[2], side, ttl)
return { stamp, 'granted', fmt('%.0f', side.fence), fmt('%d', depth) }
