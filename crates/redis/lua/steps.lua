-- The algorithms, by their number; each file below adds one, when a batch has need of it.
local steps = {}

-- How many milliseconds a key lives that is idle from `idle` on: never shorter than that. In
-- decimals, as Redis would write the number itself much more slowly; many keys live equally long.
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
