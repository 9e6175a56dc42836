-- Names that every step uses. Scripts are one chunk: all that follows is local to it.

local call = redis.call
local pack, unpack_ = struct.pack, struct.unpack
local fmt, sub_, find = string.format, string.sub, string.find
local byte, rep = string.byte, string.rep
local concat, floor = table.concat, math.floor

-- Doubles are exact up to here; no time, count or total that we write lies above.
local MAX_EXACT = 9007199254740992

-- The furthest that debt or a lease may reach, the furthest that anything may lie ahead, and the
-- most that debits may count up to: as in core.
local MAX_AHEAD = 31536000000000
local FURTHEST = 12 * MAX_AHEAD
local MAX_USED = 2000000000000000

-- The longest state: ten thousand holders, and a tag.
local MAX_VALUE = 240512
