-- Describes the holder of a lock, for `inspect` and `force`.

-- Returns type ('hash', 'string', 'none' or 'other'), owner, number of holds, milliseconds left and
-- number of listeners; of a lock of ours also fence, `since` and label.
local function describe(lock, place, channel)
  local kind, owner, depth = call('TYPE', lock).ok, '', 1
  if kind == 'hash' then
    -- A lock has one field, or two with its mode.
    if call('HLEN', lock) > 2 then return 'other' end
    local fields = call('HGETALL', lock)
    local at = fields[1] == 'mode' and 3 or 1
    owner, depth = fields[at] or '', tonumber(fields[at + 1])
    if not depth then return 'other' end
  elseif kind == 'string' then
    if call('STRLEN', lock) > 1024 then return 'other' end
    owner = call('GET', lock)
  elseif kind ~= 'none' then
    return 'other'
  end
  local listening = redis.pcall('PUBSUB', 'NUMSUB', channel)
  local side, fence, since, label = read(call('MGET', place)[1]), '', '', ''
  if side and side.owner == owner then
    fence, since, label = fmt('%.0f', side.fence), side.since, side.label
  end
  return kind, owner, fmt('%d', depth), fmt('%.0f', call('PTTL', lock)),
    fmt('%d', listening[2] or 0), fence, since, label
end
