-- The beginning of a run: the time, the kept reply of an earlier run, and shared functions.
-- batch.lua documents the arguments and the reply.

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local reply_key
if ARGV[2] ~= '' then
  reply_key = string.match(KEYS[1], '^tg:{[^}]*}:') .. 'reply:' .. ARGV[2]
  local known = call('GET', reply_key)
  -- A shorter value is not a reply.
  if known and #known >= 24 then return known end
end
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

local packed, program, header = ARGV[3], ARGV[4], 2

-- Packs the reply, and keeps it if the batch may be sent again (before not_after).
local function answer(outcomes, poisoned, views, lengths, values)
  local reply = pack('<I8I4I4I4I4', now, poisoned, #outcomes, #views, #lengths)
    .. outcomes .. views .. lengths .. values
  if reply_key then
    local life = (not_after > 0 and not_after or now) + 1000000 - now
    call('SET', reply_key, reply, 'PX', fmt('%d', life / 1000 + 1))
  end
  return reply
end

local poisoned = 0

-- Stores a value for `px` milliseconds. `before` is the key's prior value.
local function put(key, value, px, before)
  if before then
    call('SET', KEYS[key], value, 'PX', px)
  elseif not call('SET', KEYS[key], value, 'PX', px, 'NX') then
    -- The key holds something that is not a string.
    poisoned = poisoned + 1
    call('SET', KEYS[key], value, 'PX', px)
  end
end
