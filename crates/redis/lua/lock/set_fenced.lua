-- Sets a value that only holders with the newest fence may set.
--
-- KEYS[1]  the value: a hash { fence, value }
-- ARGV[3]  the fence of the writer
-- ARGV[4]  the new value
-- ARGV[5]  its lifetime in milliseconds; 0 for ever
--
-- Returns now_us, the newest fence that was shown here, and 'set' or 'stale'.
--
-- Fences are compared as text of equal length, which is exact whatever their size.

local function padded(text) return string.rep('0', 20 - #text) .. text end

local found = call('HGET', KEYS[1], 'fence')
if found and not string.find(found, '^%d+$') then found = nil end
if found and #found <= 20 and padded(found) > padded(ARGV[3]) then return { stamp, found, 'stale' } end
call('HSET', KEYS[1], 'fence', ARGV[3], 'value', ARGV[4])
if ARGV[5] == '0' then call('PERSIST', KEYS[1]) else call('PEXPIRE', KEYS[1], ARGV[5]) end
return { stamp, ARGV[3], 'set' }
