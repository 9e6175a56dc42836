-- What time it is, for every step on a lock. Each step is one script, put together in `src/script.rs`:
-- acquisition and release begin with a short cut for what is usual. Redis runs all of a script anew each
-- time, and making a function costs as much as a call, so the short cuts come before any is made.
--
-- The lock itself is Redisson's: a hash { owner = count }, or for a simple lock a string, the owner.
-- What has no place in it is beside it, in one string in the same slot, the sidecar:
--
--   1 fence since barred delay owner holds label
--
-- `since` is when it was granted (microseconds), `barred` until when nobody may take it if it vanishes
-- (milliseconds, 0 for none), `delay` how long that is, `holds` the ids of the acquisitions that count,
-- with commas between. It is only believed together with the lock: a sidecar of another owner, or
-- without a lock, says nothing but the last fence. Whatever else is there counts as absent.
--
-- `Record` of core is the same in Rust. Change them together: one suite judges both.

local call = redis.call
local clock = call('TIME')
-- As text: to write a double of so many digits takes longer than to read the clock.
local micros = clock[2]
if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
local stamp = clock[1] .. micros
local now = stamp + 0

-- Above this a double cannot count by one.
local MAX_FENCE = 9007199254740991
