-- The steps by algorithm number. Each file below adds one, when a batch needs it.
local steps = {}

-- Returns the milliseconds until a key is idle, never less, in decimals: Redis would write the
-- number much more slowly itself. Cached, because many keys live equally long.
local decimals = {}
local function ttl(idle, now)
  local span = idle - now
  local text = decimals[span]
  if not text then
    text = fmt('%d', span / 1000 + 1)
    decimals[span] = text
  end
  return text
end
