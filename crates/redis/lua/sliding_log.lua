-- Sliding log (1), as crates/core/src/algorithm/sliding_log.rs: a sorted set.
--
-- One member for each instant: its score is the moment, the member is `<I8I8` total and cost:
-- everything charged up to and including it, and what of that is its own. So usage is the newest
-- total less what came before the first live entry, and no scan is needed. One more member, at
-- score -1, is the tag of the limit. Everything charged in one batch is of one instant, so a batch
-- adds one entry at most.
--
-- A log in hand:
--   base, total   what has left or was given back, and the newest total: usage is the difference
--   newest        the moment of the newest entry
--   last          the newest entry as it is stored, on time; nil if there is none
--   prev          the total before the entry of this instant, once there is one
--   pushed        there is an entry of this instant that is not stored as it is
--   replaces      it takes the place of `last`
--   cut           entries ahead of the clock are stored, and stand for nothing
--   forgiven      base has moved past entries that are stored
--   rebased       how much all totals were lowered by
--   stored        whether anything is stored that is worth keeping

local MAX_TOTAL = 4503599627370496
local MAX_DEBT = 1099511627776
local MAX_ENTRIES = 100000

-- A length of one byte goes before a tag that is returned.
local MAX_TAG = 255

local log = { is_log = true }

function log.plan(packed, at)
  local capacity, window
  capacity, window, at = unpack_('<dd', packed, at)
  return { capacity = capacity, window = window }, at
end

local function member(total, cost)
  return pack('<I8I8', total, cost)
end

-- The first entry of what a range found; nil if it is not one of ours.
local function entry(found)
  local text, at = found[1], tonumber(found[2])
  if not text or #text ~= 16 or at < 0 or at >= MAX_EXACT or at % 1 ~= 0 then return nil end
  local total, cost = unpack_('<I8I8', text)
  if cost == 0 or cost > total or total > MAX_TOTAL then return nil end
  return { at = at, total = total, cost = cost, text = text }
end

local function at_rank(key, rank)
  return entry(call('ZRANGE', key, rank, rank, 'WITHSCORES'))
end

local function score(at)
  return fmt('%.0f', at)
end

-- The lower bound of the scores that are live, which never takes in the tag, whatever the clock.
local function live_after(plan, now)
  local left = now - plan.window
  if left < 0 then left = -1 end
  return '(' .. score(left)
end

-- The tag that is stored, false if nothing is, nil if it is foreign.
function log.tag(key)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first.err then return nil end
  if #first == 0 then return false end
  if tonumber(first[2]) ~= -1 or #first[1] > MAX_TAG then return nil end
  return first[1]
end

-- Reads what decisions need of a log under its own tag, settled. Nil if it is idle; nil and true
-- if it is foreign.
function log.open(key, plan, now)
  local last = at_rank(key, -1)
  if not last then return nil, true end
  if last.at + plan.window <= now then return nil, false end
  local from = entry(call('ZRANGEBYSCORE', key, live_after(plan, now), '+inf',
    'WITHSCORES', 'LIMIT', 0, 1))
  if not from or from.total > last.total then return nil, true end
  local state = {
    key = key, base = from.total - from.cost, total = last.total, newest = last.at, last = last,
    rebased = 0, stored = true,
  }
  if last.at > now then
    state.newest, state.cut, state.pushed, state.dirty = now, true, true, true
    local on_time = call('ZREVRANGEBYSCORE', key, score(now), 0, 'WITHSCORES', 'LIMIT', 0, 1)
    state.last = entry(on_time)
    if #on_time > 0 and not state.last then return nil, true end
    if not state.last then
      state.prev = 0
    elseif state.last.at == now then
      state.prev, state.replaces = state.last.total - state.last.cost, true
    else
      state.prev = state.last.total
    end
  end
  return state, false
end

local function copy(state)
  local new = {}
  for name, value in pairs(state) do new[name] = value end
  return new
end

-- The rank of the first entry, from `low` on, whose total is at least `total`. It lies where it
-- would if every entry cost one, or is found by bisection.
local function rank_of(key, low, high, total, guess)
  local tries = 0
  while low < high do
    local middle = guess
    if tries > 2 or middle < low or middle >= high then middle = floor((low + high) / 2) end
    tries = tries + 1
    local found = at_rank(key, middle)
    if found and found.total >= total then
      high, guess = middle, middle - 1
    else
      low, guess = middle + 1, middle + 1
    end
  end
  return low
end

local function first_live(state, plan, now)
  return call('ZCARD', state.key) - call('ZCOUNT', state.key, live_after(plan, now), '+inf')
end

-- The moment of the entry whose leaving brings what has left to `gone`.
local function blocking(plan, state, gone, now)
  -- The newest entry, or one before it?
  local before = state.prev or (state.last.total - state.last.cost - state.rebased)
  if gone > before or not state.stored then return state.newest end
  local key, stored = state.key, gone + state.rebased
  local memo = state.memo
  if memo and memo.gone == stored then return memo.at end
  local low = first_live(state, plan, now)
  local high = call('ZCARD', key) - 1
  local found = at_rank(key, rank_of(key, low, high, stored, low + gone - state.base - 1))
  if not found then return state.newest end
  state.memo = { gone = stored, at = found.at }
  return found.at
end

-- What `Log::view` in core sees: what is used, the newest moment, and the moment that blocks the
-- cost, 0 where there is none.
function log.view(plan, state, cost, now)
  if not state then return 0, 0, 0 end
  local used = state.total - state.base
  local too_many = used + cost - plan.capacity
  if too_many <= 0 then return used, state.newest, 0 end
  local gone = state.base + too_many
  if gone > state.total then return used, state.newest, 0 end
  return used, state.newest, blocking(plan, state, gone, now)
end

-- How many live entries there are, none of them of this instant.
local function entries(plan, state, now)
  local low = first_live(state, plan, now)
  local high = call('ZCARD', state.key)
  if state.forgiven then
    low = rank_of(state.key, low, high, state.base + state.rebased + 1, -1)
  end
  return high - low
end

local function push(plan, state, cost, now)
  if state.total + MAX_DEBT > MAX_TOTAL then
    state.rebased, state.total = state.rebased + state.base, state.total - state.base
    if state.prev then state.prev = state.prev - state.base end
    state.base = 0
  end
  local used = state.total - state.base
  if cost > MAX_DEBT then cost = MAX_DEBT end
  state.total = state.total + cost
  if state.total - MAX_DEBT > state.base then
    state.base, state.forgiven = state.total - MAX_DEBT, true
  end
  if not state.pushed then
    local last = state.last
    state.pushed = true
    if not last then
      state.prev = 0
    elseif last.at == now
      or (used >= plan.capacity and entries(plan, state, now) >= plan.capacity) then
      state.prev, state.replaces = last.total - last.cost - state.rebased, true
    else
      state.prev = last.total - state.rebased
    end
  end
  state.newest, state.dirty = now, true
end

-- Decides, and changes the log in place if it passes.
local function decide_in_place(plan, state, t, now)
  local op, cost = t.op, t.cost
  local used = 0
  if state then used = state.total - state.base end
  if op == 1 or op == 2 then
    if cost > 0 and used + cost > plan.capacity then return false, false, state end
    if cost == 0 or op == 2 then return 0, false, state end
  elseif op == 3 or op == 4 then
    local passed = 0
    if t.at < now then passed = now - t.at end
    if cost == 0 or passed >= plan.window or (op == 4 and used == 0) then return 0, false, state end
    if op == 4 then
      state.base, state.forgiven, state.dirty = state.base + cost, true, true
      if state.base >= state.total then return 0, true, nil end
      return 0, true, state
    end
  else
    return false, false, state
  end
  if not state then state = { base = 0, total = 0, newest = now, rebased = 0, stored = false } end
  push(plan, state, cost, now)
  return 0, true, state
end

function log.decide(plan, state, t, now)
  if not state then return decide_in_place(plan, nil, t, now) end
  local wait, changed, new = decide_in_place(plan, copy(state), t, now)
  if changed then return wait, true, new end
  return wait, false
end

function log.idle(plan, state)
  return state.newest + plan.window
end

-- Whether an entry comes after the one before it and does not come after the newest.
local function in_order(e, before, last)
  if not last then return false end
  if before and (e.at <= before.at or e.total <= before.total) then return false end
  return e.text == last.text or (e.at < last.at and e.total < last.total)
end

-- Every live entry, as `<I8I8` moment and total, oldest first; and the members among them that are
-- not ours, which stand for nothing.
function log.dump(plan, state, now)
  local parts, strays = {}, {}
  if not state then return '', strays end
  local function keep(at, total)
    if total > state.base then parts[#parts + 1] = pack('<I8I8', at, total) end
  end
  if state.stored then
    local found = call('ZRANGEBYSCORE', state.key, live_after(plan, now), score(now),
      'WITHSCORES')
    local before
    for i = 1, #found, 2 do
      local e = entry({ found[i], found[i + 1] })
      if not e or not in_order(e, before, state.last) then
        strays[#strays + 1] = found[i]
      else
        before = e
        if not (state.replaces and e.text == state.last.text) then
          keep(e.at, e.total - state.rebased)
        end
      end
    end
  end
  if state.pushed then keep(state.newest, state.total) end
  return pack('<I8', state.base) .. concat(parts), strays
end

-- Everything that is stored, live or not, as a dump; empty if any of it is foreign, or there is
-- more than any log of ours holds.
function log.dump_all(key)
  if call('ZCARD', key) > MAX_ENTRIES + 1 then return '' end
  local found = call('ZRANGE', key, 1, -1, 'WITHSCORES')
  local parts, base = {}, nil
  for i = 1, #found, 2 do
    local e = entry({ found[i], found[i + 1] })
    if not e then return '' end
    base = base or e.total - e.cost
    parts[#parts + 1] = pack('<I8I8', e.at, e.total)
  end
  return base and pack('<I8', base) .. concat(parts) or ''
end

-- Tells one content of a log from another: totals only rise, so its ends and length say enough.
function log.fingerprint(key)
  local ends = { call('ZCARD', key), unpack(call('ZRANGE', key, 1, 1, 'WITHSCORES')) }
  for _, part in ipairs(call('ZRANGE', key, -1, -1, 'WITHSCORES')) do ends[#ends + 1] = part end
  return redis.sha1hex(concat(ends, ' '))
end

-- Removes whatever is there. To delete first would make Redis let all that follows pass even if its
-- memory is full; a write that it may refuse comes before.
local function clear(key)
  call('SET', key, '', 'PX', 1)
  call('DEL', key)
end

-- Puts a whole log in the place of what is stored: the dump of another.
function log.replace(key, tag, dump)
  clear(key)
  if dump == '' then return end
  call('ZADD', key, -1, tag)
  local before = unpack_('<I8', dump)
  for i = 9, #dump, 16 do
    local at, total = unpack_('<I8I8', dump, i)
    call('ZADD', key, score(at), member(total, total - before))
    before = total
  end
end

-- `remains`: there is something under the key that is not a log in use.
function log.write(key, plan, tag, state, now, remains)
  if not state.stored then
    if remains then clear(key) end
    call('ZADD', key, -1, tag, score(state.newest), member(state.total, state.total - state.base))
  elseif state.rebased > 0 then
    log.replace(key, tag, (log.dump(plan, state, now)))
  else
    -- What may be refused for want of memory comes first.
    if state.pushed then
      local before = state.prev
      if before < state.base then before = state.base end
      call('ZADD', key, score(state.newest), member(state.total, state.total - before))
    end
    if state.cut then call('ZREMRANGEBYSCORE', key, '(' .. score(now), '+inf') end
    if state.replaces then call('ZREM', key, state.last.text) end
    call('ZREMRANGEBYSCORE', key, 0, score(now - plan.window))
    if state.forgiven then
      local high = call('ZCARD', key)
      local rank = rank_of(key, 1, high, state.base + 1, -1)
      if rank > 1 then call('ZREMRANGEBYRANK', key, 1, rank - 1) end
      local first = high > rank and at_rank(key, 1)
      if first and first.total - first.cost < state.base then
        call('ZREM', key, first.text)
        call('ZADD', key, score(first.at), member(first.total, first.total - state.base))
      end
    end
  end
  call('PEXPIRE', key, ttl(state.newest + plan.window, now))
end

steps[1] = log
