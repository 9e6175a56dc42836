-- Concurrency (7), as crates/core/src/algorithm/concurrency.rs: change them together.
--
-- A state is the stored string itself: `<I8` when it was written, then 24 bytes a permit, the
-- holder and `<I8` until when, soonest to end first. src/layout/concurrency.rs is the same.
--
-- Thousands may hold, so nothing here makes a value for each of them: permits are searched and
-- moved as bytes. Only a clock that stepped back rewrites them one by one.
do
  local MAX_COUNT = 10000

  -- Where the first permit that ends after `moment` begins; past the end if none does.
  local function after(s, moment)
    local low, high = 0, (#s - 8) / 24
    while low < high do
      local middle = floor((low + high) / 2)
      if unpack_('<I8', s, 25 + 24 * middle) <= moment then low = middle + 1 else high = middle end
    end
    return 9 + 24 * low
  end

  -- Where the permit of `holder` begins, from `from` on. The same bytes may also lie across the
  -- border of two permits.
  local function seek(s, holder, from)
    local at = find(s, holder, from, true)
    while at and (at - 9) % 24 ~= 0 do
      at = find(s, holder, at + 1, true)
    end
    return at
  end

  -- Written now: the permits from `first` on, but not those of `holder`, the first of which is at
  -- `mine`.
  local function without(s, first, holder, mine, now)
    local rest = pack('<I8', now) .. sub_(s, first, mine - 1) .. sub_(s, mine + 24)
    local again = seek(rest, holder, mine - first + 9)
    if again then return without(rest, 9, holder, again, now) end
    return rest
  end

  local function idle(_, s)
    return (unpack_('<I8', s, #s - 7))
  end

  steps[7] = {
    plan = function(packed, at)
      local capacity, longest
      capacity, longest, at = unpack_('<I8I8', packed, at)
      -- Reading a holder as two numbers and forgetting them is the fastest way past it.
      return { capacity = capacity, longest = longest, eight = '<' .. rep('ddI8', 8) }, at
    end,

    decode = function(plan, s, at)
      local size = #s - at + 1
      if size < 32 or size > 8 + 24 * MAX_COUNT or (size - 8) % 24 ~= 0 then return nil end
      if unpack_('<I8', s, at) >= MAX_EXACT then return nil end
      local last, k, eight = 0, at + 8, plan.eight
      while k + 191 <= #s do
        local _, _, a, _, _, b, _, _, c, _, _, d, _, _, e, _, _, f, _, _, g, _, _, h =
          unpack_(eight, s, k)
        if last > a or a > b or b > c or c > d or d > e or e > f or f > g or g > h then
          return nil
        end
        last, k = h, k + 192
      end
      while k < #s do
        local ends_at = unpack_('<I8', s, k + 16)
        if last > ends_at then return nil end
        last, k = ends_at, k + 24
      end
      if last >= MAX_EXACT then return nil end
      return sub_(s, at)
    end,

    settle = function(_, s, now)
      if idle(nil, s) <= now then return nil, true end
      local back = unpack_('<I8', s) - now
      if back <= 0 then return s, false end
      -- What lay ahead of the write lies as far ahead of the earlier now.
      local shifted = { pack('<I8', now) }
      for k = 9, #s, 24 do
        local ends_at = unpack_('<I8', s, k + 16) - back
        if ends_at < 0 then ends_at = 0 end
        shifted[#shifted + 1] = sub_(s, k, k + 15)
        shifted[#shifted + 1] = pack('<I8', ends_at)
      end
      return table.concat(shifted), true
    end,

    decide = function(plan, s, t, now)
      local op = t.op
      local first, live = 9, 0
      if s then
        first = after(s, now)
        live = (#s + 1 - first) / 24
      end
      if op == 2 then
        if t.cost > 0 and live + t.cost > plan.capacity then return false, false end
        return 0, false
      end
      if op < 5 then return false, false end
      local holder = t.holder
      local mine = s and seek(s, holder, first)
      if op == 7 then
        if not mine then return 0, false end
        local rest = without(s, first, holder, mine, now)
        if #rest == 8 then return 0, true, nil end
        return 0, true, rest
      end
      if not mine and (op == 6 or live >= plan.capacity) then return false, false end
      local lease = t.lease
      if lease > plan.longest then lease = plan.longest end
      local ends_at = now + lease
      local permit = holder .. pack('<I8', ends_at)
      if not s then return 0, true, pack('<I8', now) .. permit end
      local rest
      if mine then
        rest = without(s, first, holder, mine, now)
      else
        rest = pack('<I8', now) .. sub_(s, first)
      end
      local place = after(rest, ends_at)
      if place > #rest then return 0, true, rest .. permit end
      return 0, true, sub_(rest, 1, place - 1) .. permit .. sub_(rest, place)
    end,

    encode = function(s)
      return s
    end,

    idle = idle,
  }
end
