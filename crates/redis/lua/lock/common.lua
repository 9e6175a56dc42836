-- Functions that the steps on locks share, beyond `clock.lua`.

local fmt, concat, match = string.format, table.concat, string.match
local now_ms = math.floor(now / 1000)

-- Milliseconds by which a sidecar outlives its lock. While it remembers the fence, a clock that steps
-- back cannot make that again.
local DAY = 86400000

-- Parses a sidecar, or returns nil. `MGET` reads it, which returns nil where `GET` fails.
local function read(value)
  if not value then return nil end
  local fence, since, barred, delay, owner, holds, label =
    match(value, '^1 (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  fence = fence and #fence <= 16 and tonumber(fence)
  if not fence or fence > MAX_FENCE then return nil end
  return {
    fence = fence, since = since, barred = tonumber(barred), delay = tonumber(delay),
    owner = owner, holds = holds, label = label,
  }
end

-- Writes the sidecar of a lock that lives `ttl` milliseconds.
local function note(key, side, ttl)
  if side.delay > 0 and side.owner ~= '-' then side.barred = now_ms + ttl + side.delay end
  local text = concat({
    '1', fmt('%.0f', side.fence), side.since, fmt('%.0f', side.barred), fmt('%.0f', side.delay),
    side.owner, side.holds, side.label,
  }, ' ')
  call('SET', key, text, 'PX', fmt('%.0f', ttl + DAY))
end

-- Tests if this hold of this owner is one that counts.
local function counts(side, owner, hold)
  if not side or side.owner ~= owner then return false end
  return string.find(',' .. side.holds .. ',', ',' .. hold .. ',', 1, true) ~= nil
end

-- Reads how often this owner holds the lock, 1 for a simple one; false if not at all; a table if it is
-- of another type.
local function look(kind, key, owner)
  local found
  if kind == 'r' then found = redis.pcall('HGET', key, owner) else found = redis.pcall('GET', key) end
  if type(found) == 'table' then return found end
  if kind == 'r' then return found and tonumber(found) or found end
  return found == owner and 1 or false
end

-- Extends the lease to at least `lease`, and returns it.
local function lengthen(key, ttl, lease)
  if ttl >= lease then return ttl end
  call('PEXPIRE', key, fmt('%.0f', lease))
  return lease
end
