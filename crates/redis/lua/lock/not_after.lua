-- The beginning of every step but acquisition and release, after `clock.lua`.
--
-- ARGV[1]  not_after: microseconds of server time after which nothing is done; 0 if unknown
-- ARGV[2]  unused here: the ids of a step make it safe to send again

local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end
