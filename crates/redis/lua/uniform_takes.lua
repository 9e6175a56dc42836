-- Uniform takes: the same take without patience, once from each of several token buckets or leaky meters,
-- under one limit whose permits take whole microseconds. If a counter is under another limit, further
-- ahead than a full burst, or foreign, the loop ends with nothing written; takes.lua then decides the
-- same.
--
-- A shortcut: Redis executes 27 % fewer instructions than in takes.lua for 190 keys, 28 % fewer for 6.

while byte(packed) == 2 do
  local keys, tag, format, piece, full, cost
  keys, tag, format, piece, full, cost, header = unpack_('<I2I1c0I1c0I1c0dd', packed, header)
  local prior = call('MGET', unpack(KEYS))

  -- An absent bucket is read as one that has been full since the epoch.
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

  -- One unpack for all: per key the whole of the arrival time, then its part and the next tag.
  local values = concat(prior)
  local between = '\0\0\0\0\0\0\0\0' .. tag
  local found = { unpack_('<' .. rep(piece, keys), values .. tag, #tag + 1) }
  local furthest = now + full
  if find(values, tag, 1, true) ~= 1 then break end
  for i = 1, 2 * keys, 2 do
    if found[i] >= furthest or found[i + 1] ~= between then strange = true end
  end
  if strange then break end

  local latest, refused, last, px = furthest - cost, nil, nil, nil
  for key = 1, keys do
    local at = found[key + key - 1]
    if at < now then at = now end
    if at > latest then
      refused = refused or {}
      refused[key] = true
    else
      at = at + cost
      if at ~= last then last, px = at, fmt('%d', (at - now) / 1000 + 1) end
      put(key, pack(format, tag, at), px, not absent or prior[key] ~= absent)
    end
  end

  local outcomes
  if refused then
    for key = 1, keys do refused[key] = refused[key] and 'd' or 'p' end
    outcomes = concat(refused)
  else
    outcomes = rep('p', keys)
  end
  return answer(outcomes, poisoned, '', pack('<I4', length), values)
end
