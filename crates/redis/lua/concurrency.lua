-- Concurrency (7), as crates/core/src/algorithm/concurrency.rs: change them together.
--
-- Stored as `<I8` time of the write, then 24 bytes a permit: the holder and `<I8` end of the lease,
-- soonest first. src/layout/concurrency.rs is the same.
--
-- There may be thousands of holders, so nothing here visits each of them. Redis hashes every string
-- that Lua makes, byte by byte, so no long one is cut or joined before all is decided. A state is
-- { written_at, pieces, count }; a piece is { string, offset of its first permit, number of permits,
-- true if made in this run }. Pieces and lists of them are never changed, only replaced. A foreign
-- order of permits is not noticed; core finds the same places in it.
do
  local MAX_COUNT = 10000

  -- The most permits of a piece that another one is joined to.
  local MAX_JOINED = 32

  -- The end of the lease at `index`, counted from 0.
  local function until_when(pieces, index)
    local i, piece = 1, pieces[1]
    while index >= piece[3] do
      index, i = index - piece[3], i + 1
      piece = pieces[i]
    end
    return (unpack_('<I8', piece[1], piece[2] + 24 * index + 16))
  end

  -- The index of the first permit, from `low` on, that ends after `moment`.
  local function after(state, low, moment)
    local pieces, high = state[2], state[3]
    while low < high do
      local middle = floor((low + high) / 2)
      if until_when(pieces, middle) <= moment then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Index of the permit at `at` of `s`; nil if it was removed.
  local function index_of(pieces, s, at)
    local index = 0
    for i = 1, #pieces do
      local piece = pieces[i]
      local inside = (at - piece[2]) / 24
      if piece[1] == s and inside >= 0 and inside < piece[3] then return index + inside end
      index = index + piece[3]
    end
    return nil
  end

  -- Finds the holder's permit from `first` on. Searches for the id without its leading zeros, as
  -- most ids are full of zeros. A match may also lie elsewhere than at the beginning of a permit.
  local function seek(state, holder, first)
    local pieces, searched = state[2], nil
    local skip = (find(holder, '[^%z]') or 1) - 1
    local bytes = sub_(holder, skip + 1)
    for i = 1, #pieces do
      local s, origin = pieces[i][1], pieces[i][2]
      -- Many pieces may share the stored string; search it once.
      local at = s ~= searched and find(s, bytes, origin + skip, true)
      if not pieces[i][4] then searched = s end
      while at do
        at = at - skip
        if (at - origin) % 24 == 0 and sub_(s, at, at + 15) == holder then
          local found = index_of(pieces, s, at)
          if found and found >= first then return found end
        end
        at = find(s, bytes, at + skip + 1, true)
      end
    end
    return nil
  end

  -- Appends the permits from `low` to before `high` to `out`, as pieces.
  local function copy(pieces, low, high, out)
    local index, n = 0, #out
    for i = 1, #pieces do
      local piece = pieces[i]
      local from, to = low - index, high - index
      index = index + piece[3]
      if from <= 0 and to >= piece[3] then
        n = n + 1
        out[n] = piece
      elseif to <= 0 then
        break
      elseif from < piece[3] then
        if from < 0 then from = 0 end
        if to > piece[3] then to = piece[3] end
        n = n + 1
        out[n] = { piece[1], piece[2] + 24 * from, to - from, piece[4] }
      end
    end
    return out
  end

  local function idle(_, state)
    return until_when(state[2], state[3] - 1)
  end

  -- Returns the permits from `first` on without the one at `mine`; nil if none is left.
  local function without(state, first, mine, now)
    local pieces = copy(state[2], first, mine, {})
    copy(state[2], mine + 1, state[3], pieces)
    local count = state[3] - first - 1
    if count == 0 then return nil end
    return { now, pieces, count }
  end

  local function text(piece)
    return sub_(piece[1], piece[2], piece[2] + 24 * piece[3] - 1)
  end

  -- Returns the permits from `first` on and one more in its place. New permits of a run mostly end
  -- side by side, and are kept in few pieces.
  local function with(state, first, permit, ends_at, now)
    if not state then return { now, { { permit, 1, 1, true } }, 1 } end
    local place = after(state, first, ends_at)
    local pieces, rest = copy(state[2], first, place, {}), copy(state[2], place, state[3], {})
    local joined, count, next_one = permit, 1, 1
    local before, behind = pieces[#pieces], rest[1]
    if before and before[4] and before[3] < MAX_JOINED then
      joined, count = text(before) .. joined, before[3] + 1
      pieces[#pieces] = nil
    end
    if behind and behind[4] and behind[3] < MAX_JOINED then
      joined, count, next_one = joined .. text(behind), count + behind[3], 2
    end
    pieces[#pieces + 1] = { joined, 1, count, true }
    for i = next_one, #rest do pieces[#pieces + 1] = rest[i] end
    return { now, pieces, state[3] - first + 1 }
  end

  steps[7] = {
    plan = function(packed, at)
      local capacity, longest
      capacity, longest, at = unpack_('<I8I8', packed, at)
      return { capacity = capacity, longest = longest }, at
    end,

    decode = function(_, s, at)
      local size = #s - at + 1
      if size < 32 or size > 8 + 24 * MAX_COUNT or (size - 8) % 24 ~= 0 then return nil end
      local written_at, count = unpack_('<I8', s, at), (size - 8) / 24
      if written_at >= MAX_EXACT then return nil end
      return { written_at, { { s, at + 8, count, false } }, count }
    end,

    settle = function(_, state, now)
      local last = idle(nil, state)
      if last <= now then return nil, true end
      local back, latest = state[1] - now, now + MAX_AHEAD
      if back <= 0 and last <= latest then return state, false end
      -- Moves all leases back as far as the clock stepped back. The state is as stored, one piece.
      if back < 0 then back = 0 end
      local moved, s, from = {}, state[2][1][1], state[2][1][2]
      for k = from, #s, 24 do
        local ends_at = unpack_('<I8', s, k + 16) - back
        if ends_at < 0 then ends_at = 0 end
        if ends_at > latest then ends_at = latest end
        moved[#moved + 1] = sub_(s, k, k + 15)
        moved[#moved + 1] = pack('<I8', ends_at)
      end
      return { state[1] - back, { { concat(moved), 1, state[3], false } }, state[3] }, true
    end,

    decide = function(plan, state, t, now)
      local op = t.op
      local first, live = 0, 0
      if state then
        first = after(state, 0, now)
        live = state[3] - first
      end
      if op == 2 then
        if t.cost > 0 and live + t.cost > plan.capacity then return false, false end
        return 0, false
      end
      if op < 5 then return false, false end
      local holder = t.holder
      local mine = state and seek(state, holder, first)
      if op == 7 then
        if not mine then return 0, false end
        return 0, true, without(state, first, mine, now)
      end
      if not mine and (op == 6 or live >= plan.capacity) then return false, false end
      local lease = t.lease
      if lease > plan.longest then lease = plan.longest end
      if mine then state, first = without(state, first, mine, now), 0 end
      local ends_at = now + lease
      return 0, true, with(state, first, holder .. pack('<I8', ends_at), ends_at, now)
    end,

    -- Includes the tag, so that the whole is joined once.
    encode = function(state, tag)
      local parts = { tag, pack('<I8', state[1]) }
      for i, piece in ipairs(state[2]) do parts[i + 2] = text(piece) end
      return concat(parts)
    end,

    idle = idle,
  }
end
