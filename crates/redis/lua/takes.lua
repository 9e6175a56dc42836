-- Takes without patience from token buckets, leaky meters and fixed windows: nearly every charge.
--
-- Their states are two numbers, so a take needs no table and nothing of the algorithms' own files. A batch
-- of nothing else is decided here, before the functions of the general way are made: Redis runs the whole
-- script anew each time. A request that takes from anything else, or meets a counter that is under another
-- limit, further ahead than a full burst, or foreign, goes the general way (general.lua), to the same
-- result.

local string_keys, limit_count, term_count, position = unpack_('<I2I2I2', packed, header)
local limits, terms = {}, {}

-- Reads limits and terms. `step_of` is needed for algorithms other than those of this file.
local function parse(step_of)
  for i = 1, limit_count do
    local code, tag, limit
    code, tag, position = unpack_('<I1I1c0', packed, position)
    local length, format = #tag + 16, fmt('<c%dI8I8', #tag)
    if code == 3 or code == 4 then
      local capacity, den, w, p
      capacity, den, w, p, position = unpack_('<dddd', packed, position)
      limit = {
        code = code, tag = tag, length = length, format = format, capacity = capacity, den = den, w = w,
        p = p, full = now + w, idle = 0, px = '', step = false, plan = false,
      }
    elseif code == 0 then
      local capacity, window, epoch
      capacity, window, epoch, position = unpack_('<ddd', packed, position)
      limit = {
        code = code, tag = tag, length = length, format = format, capacity = capacity, window = window,
        epoch = epoch, start = epoch == 0 and now or now - now % window, idle = 0, px = '', step = false,
        plan = false,
      }
    else
      limit = { code = code, tag = tag, step = step_of(code) }
      limit.plan, position = limit.step.plan(packed, position)
    end
    limits[i] = limit
  end
  for i = 1, term_count do
    local limit, op, cost, w, p, patience, at, lease, holder
    limit, op, cost, w, p, patience, at, lease, holder, position =
      unpack_('<I2I1ddddddc16', packed, position)
    limit = limits[limit]
    local borrowed = op > 15
    if borrowed then op = op - 16 end
    terms[i] = {
      limit = limit, op = op, cost = cost, w = w, p = p, patience = patience, at = at, lease = lease,
      holder = holder, borrowed = borrowed,
      takes = op == 1 and cost > 0 and patience == 0 and not borrowed and not limit.step
        and cost <= limit.capacity,
    }
  end
end

-- Per key: what it held; and whether general.lua has looked at it, or must.
local prior, general = {}, {}
if string_keys > 0 then prior = call('MGET', unpack(KEYS, 1, string_keys)) end

-- Per key that was only taken from: its limit and the two numbers of its state. Of a bucket these are the
-- arrival time, whole and part; of a window its start and what was used.
local taken_under, taken_a, taken_b = {}, {}, {}

-- So many equal takes from a key, one after the other. Returns how many pass (as all cost the same, those
-- are the first), the state then, and whether what is stored is idle. Nil if they go the general way.
local function take(key, t, times)
  if general[key] then return nil end
  local limit, a, b, passed, stale = t.limit, taken_a[key], 0, 0, false
  local value = not a and prior[key]
  if a then
    if taken_under[key] ~= limit then return nil end
    b = taken_b[key]
  elseif value then
    if #value ~= limit.length then return nil end
    local tag
    tag, a, b = unpack_(limit.format, value)
    if tag ~= limit.tag then return nil end
  end
  local start = limit.start
  if start then
    if value then
      -- A window that begins in the future is moved by the general way.
      if a > now or b == 0 or b > MAX_USED then return nil end
      stale = a + limit.window <= now
    end
    if stale or not a then a, b = start, 0 end
    -- Exact: what is divided, and so every quotient times the cost, is below 2^53.
    passed = floor((limit.capacity - b) / t.cost)
    if passed < 0 then passed = 0 elseif passed > times then passed = times end
    return passed, a, b + passed * t.cost, stale
  end
  local full, den, part = limit.full, limit.den, limit.p
  if value then
    if a >= full or b >= den then return nil end
    stale = a < now or (a == now and b == 0)
  end
  -- What is idle is as good as absent.
  if stale or not a then a, b = now, 0 end
  local cost_w, cost_p = t.w, t.p
  while passed < times do
    local w, p = a + cost_w, b + cost_p
    if p >= den then w, p = w + 1, p - den end
    if w > full or (w == full and p > part) then break end
    a, b, passed = w, p, passed + 1
  end
  return passed, a, b, stale
end

-- So many equal requests, each of takes from different keys. Returns their outcomes; nil, with nothing
-- done, if they go the general way.
local new_a, new_b, counts = {}, {}, {}
local function take_all(count, flat, at, times)
  local passing, any_stale = times, false
  for c = 1, count do
    local key = flat[at + 2 * c - 1]
    for before = 1, c - 1 do
      if flat[at + 2 * before - 1] == key then return nil end
    end
    local t, passed, stale = terms[flat[at + 2 * c]]
    if not (t and t.takes) then return nil end
    passed, new_a[c], new_b[c], stale = take(key, t, times)
    if not passed then return nil end
    if passed < passing then passing = passed end
    if stale then any_stale = true end
    counts[c] = passed
  end
  -- What is idle is dropped even if the request is refused.
  if passing == 0 then return not any_stale and rep('d', times) or nil end
  for c = 1, count do
    local key, t, a, b, _ = flat[at + 2 * c - 1], terms[flat[at + 2 * c]], new_a[c], new_b[c]
    if counts[c] > passing then _, a, b = take(key, t, passing) end
    taken_under[key], taken_a[key], taken_b[key] = t.limit, a, b
  end
  if times == 1 then return 'p' end
  return rep('p', passing) .. rep('d', times - passing)
end

-- Decides the requests in order and returns their outcomes. What goes the general way is charged by
-- `charge_times` and `charge_several`; nil, with nothing written, if that is needed and they are nil.
local function decide(charge_times, charge_several)
  local outcomes, r, at, length = {}, 0, 1, #program
  while at <= length do
    local count, many
    count, many, at = unpack_('<I1I2', program, at)
    if count == 0 then
      -- Runs of equal requests of one charge each.
      local flat = { unpack_('<' .. rep('I2I2I2I2', many), program, at) }
      at = at + 8 * many
      for i = 1, 4 * many, 4 do
        local term, times = flat[i + 1], flat[i + 3]
        local t, passed, a, b = terms[term], nil, nil, nil
        local takes, limit = t and t.takes, t and t.limit
        for key = flat[i], flat[i] + flat[i + 2] - 1 do
          r = r + 1
          -- An idle counter passes at least once, so none is left to be dropped.
          if takes then passed, a, b = take(key, t, times) end
          if not passed then
            if not charge_times then return nil end
            outcomes[r] = charge_times(key, term, times)
          else
            if passed > 0 then taken_under[key], taken_a[key], taken_b[key] = limit, a, b end
            if times == 1 then
              outcomes[r] = passed == 1 and 'p' or 'd'
            else
              outcomes[r] = rep('p', passed) .. rep('d', times - passed)
            end
          end
        end
      end
    else
      -- Requests of as many charges each; or one, so many times.
      local times, dumps = 1, count > 127
      if count == 127 then
        times, many, count, at = many, 1, byte(program, at), at + 1
      elseif dumps then
        count = count - 128
      end
      local flat = { unpack_('<' .. rep('I2I2', count * many), program, at) }
      at = at + 4 * count * many
      for first = 0, 2 * count * (many - 1), 2 * count do
        r = r + 1
        outcomes[r] = take_all(count, flat, first, times)
        if not outcomes[r] then
          if not charge_several then return nil end
          local each = {}
          for n = 1, times do each[n] = charge_several(count, flat, first, dumps) end
          outcomes[r] = concat(each)
        end
      end
    end
  end
  return outcomes
end

-- Stores what takes made of a key.
local function put_taken(key)
  local limit, a, b = taken_under[key], taken_a[key], taken_b[key]
  local idle = a
  if limit.window then idle = a + limit.window elseif b > 0 then idle = a + 1 end
  if idle ~= limit.idle then limit.idle, limit.px = idle, fmt('%d', (idle - now) / 1000 + 1) end
  put(key, pack(limit.format, limit.tag, a, b), limit.px, prior[key])
end

if byte(packed) > 0 then
  parse()
  local outcomes = decide()
  if outcomes then
    for key = 1, string_keys do
      if taken_a[key] then put_taken(key) end
    end
    return answer_with(outcomes, '', prior, string_keys)
  end
  taken_under, taken_a, taken_b = {}, {}, {}
end
