-- Sliding log (1), as crates/core/src/algorithm/sliding_log.rs: a sorted set.
--
-- One member for each instant: its score is the moment, the member is `<I8I8` total (all charges
-- up to and including it) and cost (its own charges). So usage is the newest total less the total
-- before the first live entry, and no scan is needed. One more member, at score -1, is the tag of
-- the limit. All charges of one batch are of one instant, so a batch adds at most one entry.
--
-- An open log:
--   base, total   the total that left or was given back, and the newest: usage is the difference
--   newest        the moment of the newest entry
--   last          the newest stored entry that is not ahead of the clock, or nil
--   prev          the total before the entry of this instant, once there is one
--   pushed        the entry of this instant is new or differs from the stored one
--   replaces      that entry replaces `last`
--   cut           the stored entries ahead of the clock are to be removed
--   forgiven      base has moved past stored entries
--   rebased       the amount by which all totals were lowered
--   stored        something is stored that is worth keeping
--   from, whole   the first live entry as stored; true if none is stored before it

local MAX_TOTAL = 4503599627370496
local MAX_DEBT = 1099511627776
local MAX_ENTRIES = 100000

-- The most entries that are scaled to another count: as in core.
local MAX_SCALED = 256

-- The most entries of a log dumped as a whole.
local MAX_DUMPED = 8

-- The most entries that one run removes one by one; the next run removes more.
local PIECE = 10000

-- A tag is returned after its length in one byte.
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

-- Parses the first entry of a range's reply; nil if it is foreign.
local function entry(found)
  local text, at = found[1], tonumber(found[2])
  if not text or #text ~= 16 or at < 0 or at >= MAX_EXACT or at % 1 ~= 0 then return nil end
  local total, cost = unpack_('<I8I8', text)
  if cost == 0 or cost > total or total > MAX_TOTAL then return nil end
  return { at = at, total = total, cost = cost, text = text }
end

-- Redis gets ranks and scores in decimals: it would write numbers even more slowly itself.
local function at_rank(key, rank)
  if rank ~= '-1' then rank = fmt('%d', rank) end
  return entry(call('ZRANGE', key, rank, rank, 'WITHSCORES'))
end

-- Most scores are now, or now less a window.
local scores = {}
local function score(at)
  local text = scores[at]
  if not text then
    text = fmt('%.0f', at)
    scores[at] = text
  end
  return text
end

-- Returns the lower bound of live scores. It excludes the tag, whatever the clock.
local function live_after(plan, now)
  local left = now - plan.window
  if left < 0 then left = -1 end
  return '(' .. score(left)
end

-- Returns the stored tag, false if nothing is stored, nil if it is foreign; and the next member, as a
-- range does.
function log.tag(key)
  local first = redis.pcall('ZRANGE', key, '0', '1', 'WITHSCORES')
  if first.err then return nil end
  if #first == 0 then return false end
  if first[2] ~= '-1' or #first[1] > MAX_TAG then return nil end
  return first[1], { first[3], first[4] }
end

-- Opens a log under its own tag for decisions, settled; `second` is the member after the tag.
-- Nil if it is idle; nil and true if it is foreign.
function log.open(key, plan, now, second)
  local last = at_rank(key, '-1')
  if not last then return nil, true end
  if last.at + plan.window <= now then return nil, false end
  -- Usually nothing has left yet.
  local at = tonumber(second[2])
  local whole = at and at >= 0 and at > now - plan.window
  local from
  if whole then
    from = entry(second)
  else
    from = entry(call('ZRANGEBYSCORE', key, live_after(plan, now), '+inf',
      'WITHSCORES', 'LIMIT', '0', '1'))
  end
  if not from or from.total > last.total then return nil, true end
  local state = {
    key = key, base = from.total - from.cost, total = last.total, newest = last.at, last = last,
    rebased = 0, stored = true, whole = whole, from = from,
  }
  if last.at > now then
    state.newest, state.cut, state.pushed, state.dirty = now, true, true, true
    local on_time = call('ZREVRANGEBYSCORE', key, score(now), '0', 'WITHSCORES', 'LIMIT', '0', '1')
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

-- Finds the rank of the first entry, from `low` on, whose total is at least `total`: by `guess`,
-- right if every entry costs one, else by bisection.
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
  if state.whole then return 1 end
  return call('ZCARD', state.key) - call('ZCOUNT', state.key, live_after(plan, now), '+inf')
end

-- The moment of the entry whose leaving raises `base` to `gone`.
local function blocking(plan, state, gone, now)
  -- The newest entry, or one before it?
  local before = state.prev or (state.last.total - state.last.cost - state.rebased)
  if gone > before or not state.stored then return state.newest end
  local key, stored = state.key, gone + state.rebased
  if state.from.total >= stored then return state.from.at end
  local memo = state.memo
  if memo and memo.gone == stored then return memo.at end
  local low = first_live(state, plan, now)
  local high = call('ZCARD', key) - 1
  local found = at_rank(key, rank_of(key, low, high, stored, low + gone - state.base - 1))
  if not found then return state.newest end
  state.memo = { gone = stored, at = found.at }
  return found.at
end

-- `Log::view` of core: the used count, the newest moment, and the moment that blocks the cost; 0
-- for none.
function log.view(plan, state, cost, now)
  if not state then return 0, 0, 0 end
  local used = state.total - state.base
  local too_many = used + cost - plan.capacity
  if too_many <= 0 then return used, state.newest, 0 end
  local gone = state.base + too_many
  if gone > state.total then return used, state.newest, 0 end
  return used, state.newest, blocking(plan, state, gone, now)
end

-- Counts the live entries; none of them is of this instant.
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

-- Changes the log in place if the charge is the only one of its request.
function log.decide(plan, state, t, now, alone)
  if not state or alone then return decide_in_place(plan, state, t, now) end
  local wait, changed, new = decide_in_place(plan, copy(state), t, now)
  if changed then return wait, true, new end
  return wait, false
end

function log.idle(plan, state)
  return state.newest + plan.window
end

-- Tests if an entry comes after the one before it, and not after the newest.
local function in_order(e, before, last)
  if not last then return false end
  if before and (e.at <= before.at or e.total <= before.total) then return false end
  return e.text == last.text or (e.at < last.at and e.total < last.total)
end

-- Returns every live entry, as `<I8I8` moment and total, oldest first; and the foreign members
-- among them, which count for nothing.
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

-- Notes the total at which a decision about `cost` looks for the entry that blocks it.
function log.note_cost(plan, state, cost, wanted)
  if not state or cost == 0 then return end
  local gone = state.total + cost - plan.capacity
  if gone > state.base and gone <= state.total then wanted[#wanted + 1] = gone + state.rebased end
end

-- Notes the first total that remains after a credit.
function log.note_base(state, wanted)
  if state and state.forgiven then wanted[#wanted + 1] = state.base + state.rebased + 1 end
end

-- Returns an excerpt of a long log for several decisions: the entries that reach the noted totals,
-- those before them, and the newest, as `<I8I8I8` place among the live entries, moment and total.
-- Nil if the log is short.
function log.excerpt(plan, state, wanted, now)
  if not state or not state.stored or not state.last then return nil end
  local key, after = state.key, live_after(plan, now)
  local low = call('ZCARD', key) - call('ZCOUNT', key, after, '+inf')
  local high = low + call('ZCOUNT', key, after, score(now))
  if state.forgiven then low = rank_of(key, low, high, state.base + state.rebased + 1, -1) end
  if state.replaces then high = high - 1 end
  if high - low <= MAX_DUMPED then return nil end
  local ranks, pinned = {}, {}
  local function pin(rank)
    if rank >= low and rank < high and not pinned[rank] then
      pinned[rank], ranks[#ranks + 1] = true, rank
    end
  end
  for _, total in ipairs(wanted) do
    local rank = rank_of(key, low, high, total, -1)
    pin(rank)
    pin(rank - 1)
  end
  pin(high - 1)
  table.sort(ranks)
  local parts, before = { pack('<I8', state.base) }, nil
  for _, rank in ipairs(ranks) do
    local e = at_rank(key, rank)
    if e and in_order(e, before, state.last) and e.total - state.rebased > state.base then
      parts[#parts + 1] = pack('<I8I8I8', rank - low, e.at, e.total - state.rebased)
      before = e
    end
  end
  if state.pushed then
    parts[#parts + 1] = pack('<I8I8I8', high - low, state.newest, state.total)
  end
  return concat(parts)
end

-- Describes a log under another limit: its tag, and the moment of its newest entry; no moment if
-- it is foreign.
function log.found(key, tag)
  local last = call('ZCARD', key) <= 2 * MAX_ENTRIES and at_rank(key, '-1')
  return pack('<I1', #tag) .. tag .. (last and pack('<I8', last.at) or '')
end

-- Removes any value, however large. A write that may run out of memory comes first: after a deletion,
-- Redis lets all later writes pass even if its memory is full.
local function clear(key, tag)
  if type(redis.pcall('ZCARD', key)) == 'number' then
    call('ZADD', key, '-1', tag)
  else
    call('SET', key, '', 'PX', 1)
  end
  call('UNLINK', key)
end

-- Replaces the stored value by a few entries, each with its moment and total.
local function rebuild(key, tag, before, found)
  clear(key, tag)
  local parts, last = { '-1', tag }, found[#found]
  for _, e in ipairs(found) do
    -- An unordered entry is foreign.
    if e.total > before and (e == last or e.total < last.total) then
      parts[#parts + 1], parts[#parts + 2] = score(e.at), member(e.total, e.total - before)
      before = e.total
    end
  end
  call('ZADD', key, unpack(parts))
end

-- Replaces the stored value by a whole log: the dump of another.
local function replace(key, tag, dump)
  clear(key, tag)
  call('ZADD', key, '-1', tag)
  local before = unpack_('<I8', dump)
  for i = 9, #dump, 16 do
    local at, total = unpack_('<I8I8', dump, i)
    call('ZADD', key, score(at), member(total, total - before))
    before = total
  end
end

-- Removes the entries that had left by `moment`, or as many as one run may. Between writes no more than
-- its count can leave a log.
local function trim(key, plan, moment)
  if plan.capacity > PIECE and call('ZCARD', key) > PIECE
    and call('ZCOUNT', key, '0', score(moment)) > PIECE then
    call('ZREMRANGEBYRANK', key, 1, PIECE)
  else
    call('ZREMRANGEBYSCORE', key, '0', score(moment))
  end
end

-- `remains`: the key has a value that is not a log in use.
function log.write(key, plan, tag, state, now, remains)
  if not state.stored then
    if remains then clear(key, tag) end
    call('ZADD', key, '-1', tag, score(state.newest), member(state.total, state.total - state.base))
  elseif state.rebased > 0 then
    replace(key, tag, (log.dump(plan, state, now)))
  else
    -- The write that may run out of memory comes first.
    if state.pushed then
      local before = state.prev
      if before < state.base then before = state.base end
      call('ZADD', key, score(state.newest), member(state.total, state.total - before))
    end
    if state.cut then call('ZREMRANGEBYSCORE', key, '(' .. score(now), '+inf') end
    if state.replaces then call('ZREM', key, state.last.text) end
    if not state.whole then trim(key, plan, now - plan.window) end
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

-- Scales `total`, a share of a count of `from`, to a count of `to`. Counts are at most 10^5, and
-- results above 2^53 are capped anyway.
local function scale(total, from, to)
  local rest = total % from
  local scaled = (total - rest) / from * to + floor(rest * to / from)
  if scaled > MAX_USED then scaled = MAX_USED end
  return scaled
end

-- Returns at most `most` entries from rank `low` on, spread evenly, with the last.
local function spread(key, low, count, most)
  local kept = {}
  if count <= most then
    local found = call('ZRANGE', key, low, -1, 'WITHSCORES')
    for i = 1, #found, 2 do kept[#kept + 1] = entry({ found[i], found[i + 1] }) end
  else
    for i = 1, most do kept[#kept + 1] = at_rank(key, low + floor(i * count / most) - 1) end
  end
  return kept
end

-- Drops all before rank `low`, and all but the newest `most` of the `live` entries from there on;
-- the first one kept then stands for these. False if one run may not drop as many.
local function shorten(key, tag, base, low, live, most)
  if most > live then most = live end
  local gone = low - 1 + live - most
  if gone == 0 then return true end
  if gone > PIECE and most <= MAX_SCALED then
    rebuild(key, tag, base, spread(key, gone + 1, most, most))
    return true
  end
  local piece = gone > PIECE and PIECE or gone
  local first = piece >= low and at_rank(key, piece + 1)
  -- The write that may run out of memory comes first, even if it changes nothing.
  call('ZADD', key, '-1', tag)
  if first and first.total - first.cost > base then
    call('ZADD', key, score(first.at), member(first.total, first.total - base))
    call('ZREM', key, first.text)
  end
  call('ZREMRANGEBYRANK', key, 1, piece)
  return piece == gone
end

-- Converts the log that is stored under one tag to another limit, as core's `convert` does.
--
-- `how`    `<I1dddd` action, the log's window and count, and those of the other limit; then the
--          other limit's tag. Actions: 0 drop, 1 keep, 2 scale, 3 drop if idle, else keep under its
--          own limit.
--
-- A log that must lose many entries loses them in several runs, and keeps its tag until the last.
-- Returns whether it was foreign.
function log.convert(key, old_tag, how, now)
  local act, window, count, new_window, new_count, at = unpack_('<I1dddd', how)
  local tag, plan = sub_(how, at), { capacity = count, window = window }
  local state, foreign
  if act > 0 then state, foreign = log.open(key, plan, now, {}) end
  if act == 3 and state then return false end
  if state and state.dirty then log.write(key, plan, old_tag, state, now) end
  if new_window < window then plan.window = new_window end
  local live = call('ZCOUNT', key, live_after(plan, now), '+inf')
  local low = call('ZCARD', key) - live
  local first = state and state.newest + plan.window > now and at_rank(key, low)
  if not first then
    clear(key, tag)
    return foreign
  end
  local base = first.total - first.cost
  if act == 2 then
    local scaled, before = {}, 0
    for _, e in ipairs(spread(key, low, live, MAX_SCALED)) do
      local total = scale(e.total - base, count, new_count)
      if total > before then scaled[#scaled + 1] = { at = e.at, total = total } end
      before = total
    end
    while #scaled > new_count do table.remove(scaled, 1) end
    if #scaled == 0 then
      clear(key, tag)
      return false
    end
    rebuild(key, tag, 0, scaled)
  elseif shorten(key, old_tag, base, low, live, new_count) then
    call('ZADD', key, '-1', tag)
    call('ZREM', key, old_tag)
  else
    return false
  end
  local newest = tonumber(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
  call('PEXPIRE', key, ttl(newest + new_window, now))
  return false
end

steps[1] = log
