-- Takes from fixed windows, which is all that Envoy's rules ask for: as in plain.lua, one counter at a
-- time, and left by `break` with nothing written if something else is found. Here a request of one charge
-- is told like one of several.

while byte(packed) == 3 do
  local program, unpack_, now = ARGV[4], unpack_, now
  local keys, limit_count, term_count, position = unpack_('<I2I2I2', packed, header)
  -- Limits are { tag, length of a value, its format, capacity, window, when a window that begins now does,
  -- the start of the last that was written, and how long that lives, in decimals }.
  local limits, limit_of, costs = {}, {}, {}
  for i = 1, limit_count do
    local tag, capacity, window, epoch, _
    _, tag, capacity, window, epoch, position = unpack_('<I1I1c0ddd', packed, position)
    local start = epoch == 0 and now or now - now % window
    limits[i] = { tag, #tag + 16, fmt('<c%dI8I8', #tag), capacity, window, start, false, false }
  end
  for i = 1, term_count do
    local limit, _
    limit, _, costs[i] = unpack_('<I2I1d', packed, position)
    limit_of[i], position = limits[limit], position + 67
  end

  local prior = call('MGET', unpack(KEYS))
  -- Per key, once it was looked at: its limit, when its window began and what was used of it; whether what
  -- is stored is idle, and whether something was taken.
  local under, starts, used, stale, taken = {}, {}, {}, {}, {}

  local outcomes, r, at, length, strange = {}, 0, 1, #program, false
  while at <= length and not strange do
    local count, many, times
    count, many, at = unpack_('<I1I2', program, at)
    if count == 127 then
      times, many, count, at = many, 1, byte(program, at), at + 1
    end
    -- Nobody asks for nothing; should one all the same, Redis would not come out of the loop below.
    if count == 0 then strange = true break end
    local flat = { unpack_('<' .. rep('I2I2', count * many), program, at) }
    at = at + 4 * count * many
    for first = 1, 2 * count * many, 2 * count do
      local last, passing, any_stale = first + 2 * count - 2, times or 1, false
      for c = first, last, 2 do
        local key, limit = flat[c], limit_of[flat[c + 1]]
        for before = first, c - 2, 2 do
          if flat[before] == key then strange = true end
        end
        if not under[key] then
          local value, start, count = prior[key], limit[6], 0
          if value then
            local tag
            if #value == limit[2] then tag, start, count = unpack_(limit[3], value) end
            if tag ~= limit[1] or start > now or count == 0 or count > MAX_USED then
              strange = true
            elseif start + limit[5] <= now then
              start, count, stale[key] = limit[6], 0, true
            end
          end
          under[key], starts[key], used[key] = limit, start, count
        elseif under[key] ~= limit then
          strange = true
        end
        -- Exact: what is divided, and so every quotient times the cost, is below 2^53.
        local passes = floor((limit[4] - used[key]) / costs[flat[c + 1]])
        if passes < passing then passing = passes end
        if stale[key] and not taken[key] then any_stale = true end
      end
      r = r + 1
      if passing <= 0 then
        -- What is idle is dropped even if the request is refused.
        if any_stale then strange = true end
        outcomes[r] = times and rep('d', times) or 'd'
      else
        for c = first, last, 2 do
          local key = flat[c]
          used[key], taken[key] = used[key] + passing * costs[flat[c + 1]], true
        end
        outcomes[r] = times and rep('p', passing) .. rep('d', times - passing) or 'p'
      end
    end
  end
  if strange then break end

  for key = 1, keys do
    if taken[key] then
      local limit, start = under[key], starts[key]
      if start ~= limit[7] then
        limit[7], limit[8] = start, fmt('%d', (start + limit[5] - now) / 1000 + 1)
      end
      put(key, pack(limit[3], limit[1], start, used[key]), limit[8], prior[key])
    end
  end
  return answer_strings(outcomes, prior, keys)
end
