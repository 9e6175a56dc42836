-- The time, for every step on a lock. Each step is one script, put together in `src/script.rs`:
-- acquisition and release begin with a shortcut for the usual case. Redis runs a whole script anew each
-- time, and making a function costs as much as a call, so the shortcuts come before any is made.
--
-- The lock itself is Redisson's: a hash { owner = count }, or for a simple lock a string, the owner.
-- The sidecar, one string in the same slot, has the fields that have no place there:
--
--   1 fence since barred delay owner holds label
--
-- `since` is the moment of the grant (microseconds), `barred` the end of the lock delay, before which
-- nobody may take the lock if its holder vanishes (milliseconds, 0 for none), `delay` its length,
-- `holds` the ids of the acquisitions that count, with commas between. A sidecar of another owner, or
-- without a lock, says nothing but the last fence. Any other value counts as absent.
--
-- `LockRecord` of core is the same in Rust. Change them together: one suite judges both.

local call = redis.call
local clock = call('TIME')
-- As text: writing a double of so many digits takes longer than reading the clock.
local micros = clock[2]
if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
local stamp = clock[1] .. micros
local now = stamp + 0

-- Above this a double cannot count by one.
local MAX_FENCE = 9007199254740991
