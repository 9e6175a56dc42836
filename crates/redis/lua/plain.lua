-- The beginning of a run, and the way that most batches go: equal takes without patience from as many
-- buckets, each under its limit, whose permits take whole microseconds. That is decided here, with
-- little more than has to be read and written. Any other batch, and one that finds any other counter,
-- is left to batch.lua, and nothing that it needs is made before. What the arguments and the reply are
-- is said there.

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local reply_key
if ARGV[2] ~= '' then
  reply_key = string.match(KEYS[1], '^tg:{[^}]*}:') .. 'reply:' .. ARGV[2]
  local known = call('GET', reply_key)
  if known then return cmsgpack.unpack(known) end
end
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

-- Keeps the reply of a batch that may be sent again: whoever does that does so before not_after.
local keep
if reply_key then
  keep = function(reply)
    local life = (not_after > 0 and not_after or now) + 1000000 - now
    call('SET', reply_key, cmsgpack.pack(reply), 'PX', fmt('%d', life / 1000 + 1))
  end
end

-- Left by `break`.
local packed, header = ARGV[3], 2
while byte(packed) == 1 do
  local keys, tag, format, piece, full, cost
  keys, tag, format, piece, full, cost, header = unpack_('<I2I1c0I1c0I1c0dd', packed, header)
  local prior = call('MGET', unpack(KEYS))

  -- What is absent is taken for a bucket that has been full since the epoch.
  local length, absent, strange = #tag + 16, nil, false
  for key = 1, keys do
    local value = prior[key]
    if not value then
      absent = absent or pack(format, tag, 0)
      prior[key] = absent
    elseif #value ~= length then
      strange = true
    end
  end
  if strange then break end

  -- All at once: of each the whole of its arrival time, and its part with the tag of the next.
  local values = concat(prior)
  local between = '\0\0\0\0\0\0\0\0' .. tag
  local found = { unpack_('<' .. rep(piece, keys), values .. tag, #tag + 1) }
  local furthest = now + full
  if find(values, tag, 1, true) ~= 1 then break end
  for i = 1, 2 * keys, 2 do
    if found[i] >= furthest or found[i + 1] ~= between then strange = true end
  end
  if strange then break end

  local latest, refused, poisoned, last, px = furthest - cost, nil, 0, nil, nil
  for key = 1, keys do
    local at = found[key + key - 1]
    if at < now then at = now end
    if at > latest then
      refused = refused or {}
      refused[key] = true
    else
      at = at + cost
      if at ~= last then last, px = at, fmt('%d', (at - now) / 1000 + 1) end
      if not absent or prior[key] ~= absent then
        call('SET', KEYS[key], pack(format, tag, at), 'PX', px)
      elseif not call('SET', KEYS[key], pack(format, tag, at), 'PX', px, 'NX') then
        -- There is something, and it is not a string.
        poisoned = poisoned + 1
        call('SET', KEYS[key], pack(format, tag, at), 'PX', px)
      end
    end
  end

  local letters
  if refused then
    for key = 1, keys do refused[key] = refused[key] and 'd' or 'p' end
    letters = concat(refused)
  else
    letters = rep('p', keys)
  end
  local reply = {
    fmt('%s%06d', time[1], time[2]), letters, poisoned > 0 and fmt('%d', poisoned) or '0', '',
    pack('<I4', length), values,
  }
  if keep then keep(reply) end
  return reply
end
