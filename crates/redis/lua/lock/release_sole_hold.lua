-- The shortcut of a release: the lock is held once, by this hold, and has no lock delay. It answers as
-- `release.lua` would, and leaves all other cases to that, with nothing written.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the release record of this hold
-- KEYS[4]  the channel
-- ARGV[1]  the sidecar after fence and time if only this hold counts: ' 0 0 ', the owner, a space, the hold,
--          a space. If this release may have been sent before, 'again ' in place of ' 0 0 '
-- ARGV[2]  the owner
-- ARGV[3]  the lease in milliseconds, for the remaining holds
--
-- `kind` is 'r' for a re-entrant lock, 's' for a simple one. There is no not_after: a late release
-- ends its own hold or nothing.
--
-- Returns '0' alone, in place of the time, which was not read, if the lock is free now.

local call = redis.call
local side = redis.pcall('GET', KEYS[2])
-- Fence and time have sixteen digits (until the year 2286).
if type(side) == 'string' and string.find(side, ARGV[1], 36, true) == 36 then
  local once
  if kind == 'r' then
    once = redis.pcall('HGET', KEYS[1], ARGV[2]) == '1'
  else
    once = redis.pcall('GET', KEYS[1]) == ARGV[2]
  end
  if once then
    call('DEL', KEYS[1])
    -- A user who may not publish can still release; waiters then ask by themselves.
    redis.pcall('PUBLISH', KEYS[4], '0')
    call('SET', KEYS[3], '1', 'PX', '20000')
    return '0'
  end
end
