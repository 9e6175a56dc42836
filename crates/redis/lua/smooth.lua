-- Smooth limiters (6), as crates/core/src/algorithm/smooth.rs: the same operations on the same
-- doubles in the same order. Change them together.
--
-- A state is { stored, free_at, written_at }, stored as `<dI8I8`: the bits of the double, so that
-- nothing is lost in decimals. src/layout/smooth.rs is the same.
--
-- No infinity and no NaN can arise: a stable interval is 100 to 3.2e13 us, permits are at most
-- 3.2e12, a slope times the permits above the threshold is at most 99 stable intervals, costs are
-- at most 2^53, and every divisor is an interval or 2. Whole microseconds are exact below 2^53; a
-- larger price is only compared with patience, or capped at a year ahead.
do
  local ceil = math.ceil

  local function idle(plan, state)
    -- Rounding may leave the last permit a hair short of the maximum.
    return state[2] + (ceil((plan.max - state[1]) * plan.cooldown) + 1)
  end

  -- Stores idle time as permits. Returns these, and when the next one is free.
  local function resync(plan, state, now)
    if not state then return plan.max, now end
    local stored, free_at = state[1], state[2]
    if now <= free_at then return stored, free_at end
    stored = stored + (now - free_at) / plan.cooldown
    if stored > plan.max then stored = plan.max end
    return stored, now
  end

  -- Returns the price of `cost` permits, and the permits left. Each term is truncated.
  local function price(plan, stored, cost)
    local stable = plan.stable
    local taken = cost
    if stored < taken then taken = stored end
    local micros = 0
    if plan.warming then
      local above = stored - plan.threshold
      local rest = taken
      if above > 0 then
        local dear = taken
        if above < dear then dear = above end
        local slope = plan.slope
        local sum = (stable + above * slope) + (stable + (above - dear) * slope)
        micros = floor(dear * sum / 2)
        rest = rest - dear
      end
      micros = micros + floor(stable * rest)
    end
    return micros + floor((cost - taken) * stable), stored - taken
  end

  local function take(plan, state, cost, patience, now)
    if not plan.own and cost > plan.max_debt then return false end
    local stored, free_at = resync(plan, state, now)
    local micros, left = price(plan, stored, cost)
    local wait = free_at - now
    if plan.own then wait = free_at + micros - now end
    if wait < 0 then wait = 0 end
    if wait > patience then return false end
    return wait, left, free_at + micros
  end

  local function debit(plan, state, t, now)
    local cost, since = t.cost, now - t.at
    if since < 0 then since = 0 end
    if cost == 0 or cost * plan.stable <= since then return 0, false end
    local stored, free_at = resync(plan, state, now)
    local micros, left = price(plan, stored, cost)
    local latest = now + MAX_AHEAD
    if free_at > latest then latest = free_at end
    free_at = free_at + micros
    if free_at > latest then free_at = latest end
    return 0, true, { left, free_at, now }
  end

  -- Permits drained since are worth nothing; the rest shortens the debt, then is stored.
  local function credit(plan, state, t, now)
    local stable, since = plan.stable, now - t.at
    if since < 0 then since = 0 end
    local stored, free_at = resync(plan, state, now)
    local worth = t.cost - since / stable
    if worth < 0 then worth = 0 end
    local debt = free_at - now
    if debt < 0 then debt = 0 end
    local repaid = floor(worth * stable)
    if repaid > debt then repaid = debt end
    local rest = worth - repaid / stable
    if rest < 0 or repaid < debt then rest = 0 end
    stored = stored + rest
    if stored > plan.max then stored = plan.max end
    return 0, true, { stored, free_at - repaid, now }
  end

  steps[6] = {
    plan = function(packed, at)
      local stable, max, threshold, slope, cooldown, warming, own, max_debt
      stable, max, threshold, slope, cooldown, warming, own, max_debt, at =
        unpack_('<dddddBBI8', packed, at)
      local plan = {
        stable = stable,
        max = max,
        threshold = threshold,
        slope = slope,
        cooldown = cooldown,
        warming = warming == 1,
        own = own == 1,
        max_debt = max_debt,
      }
      return plan, at
    end,

    decode = function(plan, s, at)
      if #s - at + 1 ~= 24 then return nil end
      local stored, free_at, written_at = unpack_('<dI8I8', s, at)
      -- Written so that NaN is refused.
      if not (stored >= 0 and stored <= plan.max) then return nil end
      if free_at >= MAX_EXACT or written_at >= MAX_EXACT then return nil end
      return { stored, free_at, written_at }
    end,

    settle = function(plan, state, now)
      if idle(plan, state) <= now then return nil, true end
      local free_at, written_at = state[2], state[3]
      if written_at > now then
        -- Moves `free_at` back as far as the clock stepped back.
        free_at = free_at - (written_at - now)
        if free_at < 0 then free_at = 0 end
        written_at = now
      end
      if free_at > now + FURTHEST then free_at = now + FURTHEST end
      if free_at == state[2] and written_at == state[3] then return state, false end
      return { state[1], free_at, written_at }, true
    end,

    decide = function(plan, state, t, now)
      local op = t.op
      if op <= 2 then
        if t.cost == 0 then return 0, false end
        local wait, left, free_at = take(plan, state, t.cost, t.patience, now)
        if not wait or op == 2 then return wait, false end
        return wait, true, { left, free_at, now }
      end
      if op == 3 then return debit(plan, state, t, now) end
      if op > 4 then return false, false end
      if not state then return 0, false end
      return credit(plan, state, t, now)
    end,

    encode = function(state, tag)
      return tag .. pack('<dI8I8', state[1], state[2], state[3])
    end,

    idle = idle,
  }
end
