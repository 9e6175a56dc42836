-- Leaky queue (5), as crates/core/src/algorithm/leaky_queue.rs: the state of a bucket, read as the
-- next free departure.

local function line_up(plan, state, t, now)
  if t.cost > plan.capacity then return false end
  local w, p = backlog(plan, state, now)
  local wait = ceil(w, p)
  w, p = add(plan.den, w, p, t.w, t.p)
  local retry = ceil(sub(plan.den, w, p, plan.w, plan.p))
  if retry > 0 or wait > t.patience then return false end
  return wait, with_backlog(plan, w, p, 0, now)
end

-- Gives back the place that departs at `t.at`, if it is the last.
local function step_out(plan, state, t, now)
  if t.cost == 0 or above(t.w, t.p, state[1], state[2]) then return nil end
  if ceil(sub(plan.den, state[1], state[2], t.w, t.p)) ~= t.at then return nil end
  local w, p = backlog(plan, state, now)
  w, p = sub(plan.den, w, p, t.w, t.p)
  return with_backlog(plan, w, p, state[3], now)
end

steps[5] = {
  plan = bucket.plan,
  decode = bucket.decode,
  encode = bucket.encode,
  idle = bucket.idle,
  settle = bucket.settle,
  decide = decide_by(line_up, step_out),
}
