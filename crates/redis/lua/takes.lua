-- Takes without patience from token buckets, leaky meters and fixed windows: nearly every charge.
--
-- Their states are two numbers, so a take needs no table and nothing of the algorithms' own files. Redis
-- runs the whole script anew each time, so a batch of nothing else is decided before the functions of the
-- general way are made. A request goes the general way (general.lua), to the same result, if it takes from
-- anything else or meets a counter under another limit, further ahead than a full burst, or foreign.
--
-- A table that grows costs more than one that is copied at its full size from KEYS.

local string_keys, limit_count, term_count, position = unpack_('<I2I2I2', packed, header)

-- By number: the limits that this file takes from, and the terms of these takes.
local take_limits, takes = {}, {}
for i = 1, limit_count do
  -- The terms follow, so four numbers can be read, whatever the algorithm.
  local code, tag, size, capacity, second, third, fourth = unpack_('<I1I1c0I1dddd', packed, position)
  position = position + 3 + #tag + size
  if code == 3 or code == 4 then
    take_limits[i] = {
      tag = tag, length = #tag + 16, format = fmt('<c%dI8I8', #tag), idle = 0, px = '',
      capacity = capacity, den = second, full = now + third, part = fourth,
    }
  elseif code == 0 then
    take_limits[i] = {
      tag = tag, length = #tag + 16, format = fmt('<c%dI8I8', #tag), idle = 0, px = '',
      capacity = capacity, window = second, start = third == 0 and now or now - now % second,
    }
  end
end
for i = 1, term_count do
  local limit, op, cost, w, p, patience = unpack_('<I2I1dddd', packed, position)
  limit, position = take_limits[limit], position + 67
  if limit and op == 1 and cost > 0 and patience == 0 and cost <= limit.capacity then
    takes[i] = { limit = limit, cost = cost, w = w, p = p }
  end
end

-- `prior`: the stored value of each key. `holds`: the same until the first take from the key; then the
-- limit of that take, or an empty string if general.lua has taken the key over.
local prior = string_keys > 0 and call('MGET', unpack(KEYS, 1, string_keys)) or {}
local holds = { unpack(prior, 1, string_keys) }

-- The state of each key after a take: of a bucket the arrival time, whole and part; of a window its start
-- and the used count. Filled with key names, so that the tables have their full size.
local first, second = { unpack(KEYS, 1, string_keys) }, { unpack(KEYS, 1, string_keys) }

-- Takes `times` equal costs from a bucket whose arrival time is (a, b). Returns the number that pass and the
-- arrival time after them. A take passes while the arrival time stays at or before the limit's `full` and
-- `part`. bucket.lua uses this as well.
local function fill(limit, t, a, b, times)
  local den, full, part, cost_w, cost_p = limit.den, limit.full, limit.part, t.w, t.p
  local passed = 0
  while passed < times do
    local w, p = a + cost_w, b + cost_p
    if p >= den then w, p = w + 1, p - den end
    if w > full or (w == full and p > part) then break end
    a, b, passed = w, p, passed + 1
  end
  return passed, a, b
end

-- Decides the requests in order and returns their outcomes. `charge` decides a request the general way.
-- Without it, returns nil, with nothing written, if one needs that.
local function decide(charge)
  local unpack_, fill, now, takes, holds, first, second = unpack_, fill, now, takes, holds, first, second
  local outcomes, r, at, length = { unpack(KEYS) }, 0, 1, #program
  -- For requests of several charges: their new states, and per key the last round of takes it was in.
  local new_first, new_second, tried_in, round = nil, nil, nil, 0
  while at <= length do
    local count, many, times, span, dumps = nil, nil, 1, 1, false
    count, many, at = unpack_('<I1I2', program, at)
    -- The program has groups of requests, as batch/call.rs packs them. `count` is the number of charges of
    -- each request, and `many` the number of requests. Three numbers mean something else: 127, one request
    -- that is repeated `many` times; above 127, requests whose logs the answer describes; 0, runs of requests
    -- of one charge each, with the number of keys and of repetitions of each run.
    local runs = count == 0
    if count == 127 then
      times, many, count, at = many, 1, byte(program, at), at + 1
    elseif count > 127 then
      dumps, count = true, count - 128
    elseif runs then
      count = 1
    end
    local stride = runs and 4 or 2 * count
    local flat = { unpack_('<' .. rep('I2', stride * many), program, at) }
    at = at + 2 * stride * many
    local several, n = count > 1, 0
    if several and not tried_in then
      new_first, new_second, tried_in = { 0, 0, 0, 0 }, { 0, 0, 0, 0 }, { unpack(KEYS) }
    end
    for from = 1, stride * many, stride do
      local last = from + 2 * count - 2
      if runs then span, times = flat[from + 2], flat[from + 3] end
      for offset = 0, span - 1 do
        -- All cost the same, so the first ones pass: as many as the key that grants the fewest.
        local passing, tried, any_stale = times, nil, false
        repeat
          tried, round, n = passing, round + 1, 0
          for c = from, last, 2 do
            local key, t = flat[c] + offset, takes[flat[c + 1]]
            local a, b, limit, start = nil, nil, nil, nil
            if t then
              local held = holds[key]
              limit = t.limit
              start = limit.start
              if held == limit then
                a, b = first[key], second[key]
              elseif not held then
                a, b = start or now, 0
              elseif #held == limit.length then
                local tag
                tag, a, b = unpack_(limit.format, held)
                -- The general way moves a window that begins in the future. An idle state counts as
                -- absent.
                if tag ~= limit.tag then
                  a = nil
                elseif start then
                  if a > now or b == 0 or b > MAX_USED then
                    a = nil
                  elseif a + limit.window <= now then
                    a, b, any_stale = start, 0, true
                  end
                elseif a >= limit.full or b >= limit.den then
                  a = nil
                elseif a < now or (a == now and b == 0) then
                  a, b, any_stale = now, 0, true
                end
              end
            end
            if several then
              -- A repeated key goes the general way.
              if tried_in[key] == round then a = nil end
              tried_in[key] = round
            end
            if not a then passing = nil break end
            local passed
            if start then
              -- Exact: the dividend, and so every quotient times the cost, is below 2^53.
              passed = floor((limit.capacity - b) / t.cost)
              if passed < 0 then passed = 0 elseif passed > tried then passed = tried end
              b = b + passed * t.cost
            else
              passed, a, b = fill(limit, t, a, b, tried)
            end
            if passed < passing then passing = passed end
            if several then
              n = n + 1
              new_first[n], new_second[n] = a, b
            elseif passed > 0 then
              holds[key], first[key], second[key], tried = limit, a, b, passed
            end
          end
        until passing == tried or not passing or passing == 0
        r = r + 1
        -- Idle states are dropped even if the request is refused.
        if not passing or (passing == 0 and any_stale) then
          if not charge then return nil end
          outcomes[r] = charge(count, flat, from - 1, offset, times, dumps)
        elseif passing == 0 then
          outcomes[r] = times == 1 and 'd' or rep('d', times)
        else
          if several then
            n = 0
            for c = from, last, 2 do
              local key = flat[c]
              n = n + 1
              holds[key], first[key], second[key] = takes[flat[c + 1]].limit, new_first[n], new_second[n]
            end
          end
          outcomes[r] = times == 1 and 'p' or rep('p', passing) .. rep('d', times - passing)
        end
      end
    end
  end
  return concat(outcomes, '', 1, r)
end

local outcomes = byte(packed) > 0 and decide()

-- Views of logs, and the function that writes the general way's changes.
local views, write_others = '', nil
