-- The beginning of a run, and the way that most batches go: takes without patience from buckets, each
-- under its limit and no further ahead than a full burst. Those are decided here, with little more than
-- has to be read and written. Any other batch, and one that finds any other counter, is left to
-- batch.lua, which would decide these alike; nothing that it needs is made before. What the arguments
-- and the reply are is said there.

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local reply_key
if ARGV[2] ~= '' then
  reply_key = string.match(KEYS[1], '^tg:{[^}]*}:') .. 'reply:' .. ARGV[2]
  local known = call('GET', reply_key)
  -- What is shorter is nobody's reply.
  if known and #known >= 24 then return known end
end
local not_after = tonumber(ARGV[1])
if not_after > 0 and now > not_after then return { 'late' } end

-- The reply, which is kept if the batch may be sent again: whoever does that does so before not_after.
local function answer(outcomes, poisoned, views, lengths, values)
  local reply = pack('<I8I4I4I4I4', now, poisoned, #outcomes, #views, #lengths)
    .. outcomes .. views .. lengths .. values
  if reply_key then
    local life = (not_after > 0 and not_after or now) + 1000000 - now
    call('SET', reply_key, reply, 'PX', fmt('%d', life / 1000 + 1))
  end
  return reply
end

-- The same take, once from each key, under a limit whose permits take whole microseconds. Left by
-- `break`, with nothing written.
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

  local outcomes
  if refused then
    for key = 1, keys do refused[key] = refused[key] and 'd' or 'p' end
    outcomes = concat(refused)
  else
    outcomes = rep('p', keys)
  end
  return answer(outcomes, poisoned, '', pack('<I4', length), values)
end

local poisoned = 0

-- Stores what a key is to hold, and for how long, given what it held before.
local function put(key, value, px, before)
  if before then
    call('SET', KEYS[key], value, 'PX', px)
  elseif not call('SET', KEYS[key], value, 'PX', px, 'NX') then
    -- There is something, and it is not a string.
    poisoned = poisoned + 1
    call('SET', KEYS[key], value, 'PX', px)
  end
end

-- The reply, where every key is a string.
local function answer_strings(outcomes, prior, keys)
  local lengths = {}
  for key = 1, keys do
    local value = prior[key]
    if value then lengths[key] = #value else lengths[key], prior[key] = 4294967295, '' end
  end
  lengths = pack('<' .. rep('I4', keys), unpack(lengths))
  return answer(concat(outcomes), poisoned, '', lengths, concat(prior))
end

-- Any other takes: one counter at a time. Left by `break`, with nothing written.
while byte(packed) == 2 do
  local program, unpack_, now = ARGV[4], unpack_, now
  local keys, limit_count, term_count, position = unpack_('<I2I2I2', packed, header)
  -- Limits are { tag, length of a value, its format, denominator, full burst (whole, part), the last
  -- that a key was to live under it, in decimals }, terms are { limit, span of the cost (whole, part) }.
  local limits, terms = {}, {}
  for i = 1, limit_count do
    local tag, den, w, p, _
    _, tag, _, den, w, p, position = unpack_('<I1I1c0dddd', packed, position)
    limits[i] = { tag, #tag + 16, fmt('<c%dI8I8', #tag), den, w, p, false, false }
  end
  for i = 1, term_count do
    local limit, _, _, w, p = unpack_('<I2I1ddd', packed, position)
    terms[i], position = { limits[limit], w, p }, position + 67
  end

  local prior = call('MGET', unpack(KEYS))
  -- Per key, once it was charged: its limit, and how far ahead of now it is.
  local under, ahead_w, ahead_p = {}, {}, {}

  -- How far ahead it is with one take more; whether that is too far, and whether what is stored is idle.
  -- Nil if it is another's to say.
  local function take(key, t)
    local limit, w, p, stale = t[1], ahead_w[key], 0, false
    local den, full_w = limit[4], limit[5]
    local value = prior[key]
    if w then
      if under[key] ~= limit then return nil end
      p = ahead_p[key]
    elseif value then
      if #value ~= limit[2] then return nil end
      local tag
      tag, w, p = unpack_(limit[3], value)
      w = w - now
      if tag ~= limit[1] or w >= full_w or p >= den then return nil end
      if w < 0 or (w == 0 and p == 0) then w, p, stale = 0, 0, true end
    else
      w = 0
    end
    w, p = w + t[2], p + t[3]
    if p >= den then w, p = w + 1, p - den end
    return w, p, w > full_w or (w == full_w and p > limit[6]), stale
  end

  local outcomes, r, at, length, strange = {}, 0, 1, #program, false
  while at <= length and not strange do
    local count, many
    count, many, at = unpack_('<I1I2', program, at)
    if count == 0 then
      local runs = { unpack_('<' .. rep('I2I2I2I2', many), program, at) }
      at = at + 8 * many
      for i = 1, 4 * many, 4 do
        local first, times, t = runs[i], runs[i + 3], terms[runs[i + 1]]
        local limit, cost_w, cost_p = t[1], t[2], t[3]
        local den, full_w, full_p = limit[4], limit[5], limit[6]
        for key = first, first + runs[i + 2] - 1 do
          local w, p, refused = take(key, t)
          if not w then strange = true break end
          -- As all cost the same, those that pass are the first.
          local passed = refused and 0 or 1
          if not refused then
            while passed < times do
              local next_w, next_p = w + cost_w, p + cost_p
              if next_p >= den then next_w, next_p = next_w + 1, next_p - den end
              if next_w > full_w or (next_w == full_w and next_p > full_p) then break end
              w, p, passed = next_w, next_p, passed + 1
            end
            under[key], ahead_w[key], ahead_p[key] = limit, w, p
          end
          r = r + 1
          if times == 1 then
            outcomes[r] = refused and 'd' or 'p'
          else
            outcomes[r] = rep('p', passed) .. rep('d', times - passed)
          end
        end
      end
    else
      local times = 1
      if count == 127 then
        times, many = many, 1
        count, at = byte(program, at), at + 1
      end
      local flat = { unpack_('<' .. rep('I2I2', count * many), program, at) }
      at = at + 4 * count * many
      local new_w, new_p = {}, {}
      for first = 1, 2 * count * many, 2 * count do
        local last = first + 2 * count - 2
        for again = 1, times do
          local any_refused, any_stale, charge = false, false, 0
          for c = first, last, 2 do
            local key = flat[c]
            for before = first, c - 2, 2 do
              if flat[before] == key then strange = true end
            end
            local w, p, refused, stale = take(key, terms[flat[c + 1]])
            if not w then strange = true break end
            if refused then any_refused = true end
            if stale then any_stale = true end
            charge = charge + 1
            new_w[charge], new_p[charge] = w, p
          end
          -- What is idle is dropped even if the request is refused.
          if any_refused and any_stale then strange = true end
          if strange then break end
          r = r + 1
          if any_refused then
            -- And so is the same one after it.
            outcomes[r] = rep('d', times - again + 1)
            break
          end
          outcomes[r] = 'p'
          for c = 1, charge do
            local key = flat[first + c + c - 2]
            ahead_w[key], ahead_p[key] = new_w[c], new_p[c]
            under[key] = terms[flat[first + c + c - 1]][1]
          end
        end
        if strange then break end
      end
    end
  end
  if strange then break end

  for key = 1, keys do
    local limit = under[key]
    if limit then
      local w, p = ahead_w[key], ahead_p[key]
      local idle = p > 0 and w + 1 or w
      if idle ~= limit[7] then limit[7], limit[8] = idle, fmt('%d', idle / 1000 + 1) end
      put(key, pack(limit[3], limit[1], now + w, p), limit[8], prior[key])
    end
  end
  return answer_strings(outcomes, prior, keys)
end
