-- Fixed window (0), as crates/core/src/algorithm/fixed_window.rs.
--
-- A state is { start, used }.

local function begin(plan, at)
  if plan.epoch == 0 then return at end
  return at - at % plan.window
end

local function add_to(window, cost, start)
  local used = cost
  if window then used, start = window[2] + cost, window[1] end
  if used > MAX_USED then used = MAX_USED end
  return { start, used }
end

steps[0] = {
  plan = function(packed, at)
    local capacity, window, epoch
    capacity, window, epoch, at = unpack_('<ddd', packed, at)
    return { capacity = capacity, window = window, epoch = epoch }, at
  end,

  decode = function(_, s, at)
    if #s - at + 1 ~= 16 then return nil end
    local start, used = unpack_('<I8I8', s, at)
    if start >= MAX_EXACT or used == 0 or used > MAX_USED then return nil end
    return { start, used }
  end,

  encode = function(window, tag)
    return tag .. pack('<I8I8', window[1], window[2])
  end,

  idle = function(plan, window)
    return window[1] + plan.window
  end,

  settle = function(plan, window, now)
    if window[1] + plan.window <= now then return nil, true end
    if window[1] > now then return { now, window[2] }, true end
    return window, false
  end,

  decide = function(plan, window, t, now)
    local op, cost = t.op, t.cost
    if op == 1 or op == 2 then
      local used = 0
      if window then used = window[2] end
      if cost > 0 and used + cost > plan.capacity then return false, false end
      if cost == 0 or op == 2 then return 0, false end
      return 0, true, add_to(window, cost, begin(plan, now))
    elseif op == 3 then
      local at = t.at
      if at > now then at = now end
      local start = begin(plan, at)
      local counts
      if window then counts = at >= window[1] else counts = now - start < plan.window end
      if not counts or cost == 0 then return 0, false end
      return 0, true, add_to(window, cost, start)
    elseif op == 4 then
      if not window or t.at < window[1] then return 0, false end
      if cost >= window[2] then return 0, true, nil end
      return 0, true, { window[1], window[2] - cost }
    end
    return false, false
  end,
}
