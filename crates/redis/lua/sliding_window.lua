-- Sliding window (2), as crates/core/src/algorithm/sliding_window.rs: change them together.
--
-- A state is { newest, c0, c1, .. cn }: the number of the newest pane, and the counts of it and of
-- the n panes before it. Each is stored as `<I8`; src/layout/sliding_window.rs is the same.
--
-- Exact in doubles: a count is at most MAX_USED, a capacity at most half of that, and in a
-- weighted window capacity * pane is below 2^53. A larger number is rounded, but never to below
-- 2^53, and is only compared with smaller ones.
do
  local spread = unpack

  local MAX_COUNT = 1000000000000000

  -- By the number of values.
  local formats = {}

  local function idle(plan, state)
    for i = 2, plan.last do
      if state[i] > 0 then
        local pane = state[1] + 2 - i
        if pane < 0 then pane = 0 end
        return (pane + plan.last - 1) * plan.pane
      end
    end
    return 0
  end

  -- Tests if `cost` fits beside the charges in the window.
  local function fits(plan, state, cost, present, now)
    local room = plan.capacity - cost
    if room < 0 then return false end
    if not state then return true end
    -- At least slot 2: were every pane too old, the state would have been dropped as idle.
    local oldest = plan.last - (present - state[1])
    local whole = oldest
    if plan.weighted then whole = oldest - 1 end
    for i = 2, whole do room = room - state[i] end
    if room < 0 then return false end
    if whole == oldest then return true end
    local covered = plan.pane - (now - present * plan.pane)
    return state[oldest] * covered <= room * plan.pane
  end

  -- Moves the panes on to the present one, takes `credit` off the oldest and adds `add` to the
  -- newest. Returns nil if all are empty.
  local function moved(plan, state, present, add, credit)
    local last = plan.last
    local new
    if not state then
      new = { present, add }
      for i = 3, last do new[i] = 0 end
      return new
    end
    local passed = present - state[1]
    if passed == 0 then
      new = { spread(state) }
    else
      new = { present }
      for i = 2, last do
        local from = i - passed
        new[i] = from >= 2 and state[from] or 0
      end
    end
    if credit > 0 then
      for i = last, 2, -1 do
        local off = new[i]
        if credit < off then off = credit end
        new[i] = new[i] - off
        credit = credit - off
      end
    end
    local newest = new[2] + add
    if newest > MAX_USED then newest = MAX_USED end
    new[2] = newest
    if newest > 0 then return new end
    for i = 3, last do
      if new[i] > 0 then return new end
    end
    return nil
  end

  steps[2] = {
    plan = function(packed, at)
      local capacity, pane, panes, weighted
      capacity, pane, panes, weighted, at = unpack_('<I8I8BB', packed, at)
      -- The slot of the oldest count, and the number of values in a state.
      local last = panes + 2
      formats[last] = formats[last] or '<' .. rep('I8', last)
      local plan = {
        capacity = capacity,
        pane = pane,
        window = pane * panes,
        last = last,
        weighted = weighted == 1,
      }
      return plan, at
    end,

    decode = function(plan, s, at)
      local last = plan.last
      if #s - at + 1 ~= 8 * last then return nil end
      local state = { unpack_(formats[last], s, at) }
      -- Not a value: the next position.
      state[last + 1] = nil
      if state[1] * plan.pane >= MAX_EXACT then return nil end
      for i = 2, last do
        if state[i] > MAX_USED then return nil end
      end
      return state
    end,

    settle = function(plan, state, now)
      if idle(plan, state) <= now then return nil, true end
      local present = floor(now / plan.pane)
      local ahead = state[1] - present
      if ahead <= 0 then return state, false end
      -- All that lies ahead counts as charged in the present pane.
      local new, sum = { present }, 0
      for i = 2, plan.last do
        if i - 2 < ahead then sum = sum + state[i] end
        new[i] = state[i + ahead] or 0
      end
      sum = sum + new[2]
      if sum > MAX_USED then sum = MAX_USED end
      new[2] = sum
      return new, true
    end,

    decide = function(plan, state, t, now)
      local op, cost = t.op, t.cost
      if op > 4 then return false, false end
      if cost == 0 then return 0, false end
      local present = floor(now / plan.pane)
      if op <= 2 then
        if not fits(plan, state, cost, present, now) then return false, false end
        if op == 2 then return 0, false end
        return 0, true, moved(plan, state, present, cost, 0)
      end
      if now - t.at >= plan.window then return 0, false end
      if cost > MAX_COUNT then cost = MAX_COUNT end
      if op == 3 then return 0, true, moved(plan, state, present, cost, 0) end
      if not state then return 0, false end
      return 0, true, moved(plan, state, present, 0, cost)
    end,

    encode = function(state, tag)
      return tag .. pack(formats[#state], spread(state))
    end,

    idle = idle,
  }
end
