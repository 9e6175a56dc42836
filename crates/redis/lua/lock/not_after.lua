-- What every step begins with but acquisition and release, after `clock.lua`.
--
-- ARGV[1]  not_after: microseconds of server time from which nothing is to be done; 0 if unknown
-- ARGV[2]  of no use here: every step may be sent again by its own ids

local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end
