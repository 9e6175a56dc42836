-- Lists some sidecars.
--
-- ARGV[3]  the cursor, 0 at first
-- ARGV[4]  about how many keys to look at
--
-- Returns now_us, the next cursor, and the names of sidecars, packed: each after its length in four
-- bytes. While Redis changes the size of its table it may list many more than it was asked to look at,
-- and an array of so many would not be read.

local page = call('SCAN', ARGV[3], 'MATCH', 'tg:lock:*', 'COUNT', ARGV[4])
local names = page[2]
for i = 1, #names do names[i] = struct.pack('>I4', #names[i]) .. names[i] end
return { stamp, page[1], table.concat(names) }
