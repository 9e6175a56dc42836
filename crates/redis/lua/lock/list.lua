-- Lists some sidecars.
--
-- ARGV[3]  the cursor, 0 at first
-- ARGV[4]  the approximate number of keys to scan
--
-- Returns now_us, the next cursor, and the names of sidecars, packed: each after its length in four
-- bytes. While Redis resizes its table it may return many more keys than it was asked to scan, and an
-- array of so many would not be read.

local page = call('SCAN', ARGV[3], 'MATCH', 'tg:lock:*', 'COUNT', ARGV[4])
local names = page[2]
for i = 1, #names do names[i] = struct.pack('>I4', #names[i]) .. names[i] end
return { stamp, page[1], table.concat(names) }
