-- What every step on a lock begins with. Each step is one script: this file, for some a short cut, then
-- `common.lua` and its own. Redis runs all of it anew each time, and making a function costs as much as
-- a call, so that the short cuts come before any is made.
--
-- ARGV[1]  not_after: microseconds of server time from which nothing is to be done; 0 if unknown
-- ARGV[2]  of no use here: every step may be sent again by its own ids
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

local call, fmt, concat, match = redis.call, string.format, table.concat, string.match
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- The same as text: to write a double of so many digits takes longer than to read the clock.
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

-- Above this a double cannot count by one.
local MAX_FENCE = 9007199254740991
