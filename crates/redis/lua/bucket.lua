-- Token bucket (3) and leaky meter (4), as crates/core/src/algorithm/bucket.rs.
--
-- Nearly all takes are decided in takes.lua, which does without states. Decided here: takes with
-- patience, credits, debits, and requests that mix these with other charges.
--
-- A state is { w, p, ahead, since }.
--   w, p   the moment at which the bucket is full again (its arrival time): whole microseconds, and a
--          part of one, over the rate's denominator
--   ahead  0; or the reason why that moment is later than a burst from now: 1 a debt, 2 a wait
--   since  the moment at which `ahead` was written
-- The queue (leaky_queue.lua) shares all but `take` and `credit`.

-- a - b of two spans, or zero.
local function sub(den, aw, ap, bw, bp)
  local w, p = aw - bw, ap - bp
  if p < 0 then w, p = w - 1, p + den end
  if w < 0 then return 0, 0 end
  return w, p
end

local function add(den, aw, ap, bw, bp)
  local w, p = aw + bw, ap + bp
  if p >= den then w, p = w + 1, p - den end
  return w, p
end

-- a > b
local function above(aw, ap, bw, bp)
  return aw > bw or (aw == bw and ap > bp)
end

local function ceil(w, p)
  if p > 0 then return w + 1 end
  return w
end

local bucket = {}

function bucket.plan(packed, at)
  local capacity, den, w, p
  capacity, den, w, p, at = unpack_('<dddd', packed, at)
  return { capacity = capacity, den = den, w = w, p = p, full = w, part = p }, at
end

function bucket.decode(plan, s, at)
  local length = #s - at + 1
  if length == 16 then
    local w, p = unpack_('<I8I8', s, at)
    if p >= plan.den or w >= MAX_EXACT then return nil end
    return { w, p, 0, 0 }
  elseif length == 25 then
    local w, p, ahead, since = unpack_('<I8I8I1I8', s, at)
    if p >= plan.den or w >= MAX_EXACT or since >= MAX_EXACT or (ahead ~= 1 and ahead ~= 2) then
      return nil
    end
    return { w, p, ahead, since }
  end
  return nil
end

function bucket.encode(state, tag)
  if state[3] == 0 then return tag .. pack('<I8I8', state[1], state[2]) end
  return tag .. pack('<I8I8I1I8', state[1], state[2], state[3], state[4])
end

function bucket.idle(plan, state)
  return ceil(state[1], state[2])
end

function bucket.settle(plan, state, now)
  local w, p, ahead, since = state[1], state[2], state[3], state[4]
  if ceil(w, p) <= now then return nil, true end
  if ahead ~= 0 and since > now then
    w, p = sub(plan.den, w, p, since - now, 0)
    since = now
  end
  local furthest_w, furthest_p = now + plan.w, plan.p
  if not above(w, p, furthest_w, furthest_p) then
    ahead, since = 0, 0
  elseif ahead == 0 then
    w, p = furthest_w, furthest_p
  elseif above(w, p, now + FURTHEST, 0) then
    w, p = now + FURTHEST, 0
  end
  if w == state[1] and p == state[2] and ahead == state[3] and since == state[4] then
    return state, false
  end
  return { w, p, ahead, since }, true
end

-- Returns the bucket with this backlog; keeps `ahead` only above a full burst.
local function with_backlog(plan, w, p, ahead, now)
  if ahead ~= 0 and above(w, p, plan.w, plan.p) then return { now + w, p, ahead, now } end
  return { now + w, p, 0, 0 }
end

local function backlog(plan, state, now)
  if not state then return 0, 0 end
  return sub(plan.den, state[1], state[2], now, 0)
end

local function take(plan, state, t, now)
  if t.cost > plan.capacity then return false end
  local w, p = backlog(plan, state, now)
  local passed
  plan.full = plan.w + t.patience
  passed, w, p = fill(plan, t, w, p, 1)
  if passed == 0 then return false end
  local wait = w - plan.w
  if p > plan.p then wait = wait + 1 end
  if wait < 0 then wait = 0 end
  return wait, with_backlog(plan, w, p, 2, now)
end

local function credit(plan, state, t, now)
  local w, p = backlog(plan, state, now)
  if state[3] == 2 then
    -- Only the last place of the queue can be given back: others wait behind every earlier one.
    if t.at ~= now + ceil(sub(plan.den, w, p, plan.w, plan.p)) then return nil end
    w, p = sub(plan.den, w, p, t.w, t.p)
  else
    local worth_w, worth_p = t.w, t.p
    if t.at < now then worth_w, worth_p = sub(plan.den, t.w, t.p, now - t.at, 0) end
    w, p = sub(plan.den, w, p, worth_w, worth_p)
  end
  return with_backlog(plan, w, p, state[3], now)
end

local function debit(plan, state, t, now)
  local passed = 0
  if t.at < now then passed = now - t.at end
  if t.cost == 0 or not above(t.w, t.p, passed, 0) then return nil end
  local w, p = backlog(plan, state, now)
  local most_w, most_p = plan.w + MAX_AHEAD, plan.p
  if above(w, p, most_w, most_p) then most_w, most_p = w, p end
  w, p = add(plan.den, w, p, t.w, t.p)
  if above(w, p, most_w, most_p) then w, p = most_w, most_p end
  local ahead = 1
  if state and state[3] == 2 then ahead = 2 end
  return with_backlog(plan, w, p, ahead, now)
end

-- Makes the `decide` of buckets and queues, which differ in take and credit.
local function decide_by(take, credit)
  return function(plan, state, t, now)
    local op = t.op
    if op == 1 or op == 2 then
      if t.cost == 0 then return 0, false end
      local wait, new = take(plan, state, t, now)
      if not wait or op == 2 then return wait, false end
      return wait, true, new
    end
    local new
    if op == 3 then
      new = debit(plan, state, t, now)
    elseif op == 4 then
      new = state and credit(plan, state, t, now)
    else
      return false, false
    end
    if new then return 0, true, new end
    return 0, false
  end
end

bucket.decide = decide_by(take, credit)

steps[3] = bucket
steps[4] = bucket
