-- The general way to charge: any operation of any algorithm, on states as tables.
--
-- Takes that takes.lua can decide are still decided there.

local function step_of(code)
  if not steps[code] then make(code) end
  return steps[code]
end

-- Per key: the limit its state is under, nil before the key is loaded; the state, nil if absent; true
-- if it must be written; true if it has just become idle; true if an earlier request on it is undecided;
-- the converted value.
local under, states, dirty, spent, blocked, converted = {}, {}, {}, {}, {}, {}

-- Keys of logs that hold something of no use: foreign, idle, or emptied.
local remains = {}

-- Views, dumps and excerpts of logs, in order; and per key the log's foreign members.
local seen, strays = {}, {}

-- Added to the length of an excerpt of a log.
local EXCERPT = 2147483648

-- All limits and terms, by number. Takes of the first `decide` are void.
local limits, terms = {}, {}
holds = { unpack(prior, 1, string_keys) }
position = header + 6
for i = 1, limit_count do
  local code, tag, _, plan
  code, tag, _, position = unpack_('<I1I1c0I1', packed, position)
  local step = step_of(code)
  plan, position = step.plan(packed, position)
  limits[i] = { step = step, tag = tag, at = #tag + 1, plan = plan }
  if take_limits[i] then take_limits[i].general = limits[i] end
end
for i = 1, term_count do
  local limit, op, cost, w, p, patience, at, lease, holder
  limit, op, cost, w, p, patience, at, lease, holder, position =
    unpack_('<I2I1ddddddc16', packed, position)
  local borrowed = op > 15
  if borrowed then op = op - 16 end
  terms[i] = {
    limit = limits[limit], op = op, cost = cost, w = w, p = p, patience = patience, at = at,
    lease = lease, holder = holder, borrowed = borrowed,
  }
end

local log = #KEYS > string_keys and step_of(1)

for i = 1, string_keys do
  local value = prior[i]
  if value and (#value > MAX_VALUE or value == '') then
    -- Foreign: no counter is empty or that long. Such a value is not sent back.
    poisoned, dirty[i], converted[i], prior[i], holds[i] = poisoned + 1, true, '', '', ''
  end
end

for i = 5, #ARGV, 3 do
  local key, expected, new = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  if key > string_keys then
    if log.tag(KEYS[key]) == expected and log.convert(KEYS[key], expected, new, now) then
      poisoned = poisoned + 1
    end
  elseif prior[key] == expected then
    converted[key], dirty[key], holds[key] = new, true, ''
  end
end

-- Loads the state of a key for a charge under this limit; false if it is under another.
local function load(i, limit)
  local held = holds[i]
  holds[i] = ''
  if held and held ~= '' and held ~= prior[i] then
    -- Taken from before in this batch.
    under[i], states[i], dirty[i] = held.general, { first[i], second[i], 0, 0 }, true
    return under[i] == limit
  end
  local step, tag = limit.step, limit.tag
  if spent[i] then states[i], spent[i] = nil, nil end
  if under[i] then
    -- Loaded before in this batch, and absent: it may come under any limit.
    if states[i] ~= nil then return false end
    under[i] = limit
    return true
  end
  if i > string_keys then
    local found, second = log.tag(KEYS[i])
    if found == nil then
      poisoned, dirty[i], remains[i], under[i] = poisoned + 1, true, true, limit
      return true
    elseif found and found ~= tag then
      prior[i] = log.found(KEYS[i], found)
      return false
    elseif found then
      local state, foreign = log.open(KEYS[i], limit.plan, now, second)
      if foreign then poisoned = poisoned + 1 end
      if not state then remains[i] = true end
      states[i], dirty[i] = state, dirty[i] or not state or state.dirty
    end
    under[i] = limit
    return true
  end
  local value = converted[i] or prior[i]
  if value and value ~= '' then
    if find(value, tag, 1, true) ~= 1 then return false end
    local state = step.decode(limit.plan, value, limit.at)
    if state and converted[i] and step.idle(limit.plan, state) <= now then
      -- A converted state may be worth nothing; it counts until it is loaded again.
      spent[i] = true
    elseif state then
      local changed
      state, changed = step.settle(limit.plan, state, now)
      if changed then dirty[i] = true end
    else
      poisoned, dirty[i] = poisoned + 1, true
    end
    states[i] = state
  end
  under[i] = limit
  return true
end

-- Sets the new state of a key. A state that was credited in full counts until the next request
-- looks at it, as in core.
local function commit(key, limit, new)
  states[key], dirty[key] = new, true
  if new ~= nil and limit.step.idle(limit.plan, new) <= now then
    spent[key] = true
  elseif spent[key] then
    spent[key] = nil
  end
end

local function asked(t)
  return t.op <= 2 and t.cost or 0
end

local function see(t, state)
  seen[#seen + 1] = pack('<I8I8I8', log.view(t.limit.plan, state, asked(t), now))
end

-- Adds a log that several charges of one request share to `seen`: all of it, or an excerpt.
local function see_all(i, limit, state, wanted)
  local excerpt = log.excerpt(limit.plan, state, wanted, now)
  if excerpt then
    seen[#seen + 1] = pack('<I4', #excerpt + EXCERPT) .. excerpt
    return
  end
  local dump, found = log.dump(limit.plan, state, now)
  seen[#seen + 1] = pack('<I4', #dump) .. dump
  if #found > 0 then strays[i] = found end
end

-- Decides a request of several charges, all or none. Keys and terms are in `flat`, after `from`; each key
-- is `offset` further on.
local function charge_several(count, flat, from, offset, dumps)
  local keys, charges, group = {}, {}, {}
  local decidable = true
  for c = 1, count do
    local key, term = flat[from + 2 * c - 1] + offset, flat[from + 2 * c]
    if term > 32767 then term, group[c] = term - 32768, true end
    keys[c], charges[c] = key, terms[term]
    local limit = charges[c].limit
    if blocked[key] or ((under[key] ~= limit or spent[key]) and not load(key, limit)) then
      decidable = false
    elseif charges[c].borrowed and states[key] == nil then
      decidable, prior[key] = false, prior[key] or ''
    end
  end
  if not decidable then
    for c = 1, count do blocked[keys[c]] = true end
    return 'u'
  end
  local waits, scratch, touched = {}, {}, {}
  -- The shared logs, in order; per log the totals to look up, and the sum of costs.
  local logs, wanted, sums = {}, {}, {}
  local best, has_group, refused = false, false, false
  for c = 1, count do
    local key, t = keys[c], charges[c]
    local state = states[key]
    if touched[key] then state = scratch[key] end
    local shared = dumps and t.limit.step.is_log
    if shared then
      if not wanted[key] then logs[#logs + 1], wanted[key], sums[key] = key, {}, 0 end
      sums[key] = sums[key] + asked(t)
      log.note_cost(t.limit.plan, state, asked(t), wanted[key])
      -- For a refused request, and for the moment when all would pass together.
      log.note_cost(t.limit.plan, states[key], asked(t), wanted[key])
      log.note_cost(t.limit.plan, states[key], sums[key], wanted[key])
    elseif t.limit.step.is_log then
      see(t, state)
    end
    local wait, changed, new = t.limit.step.decide(t.limit.plan, state, t, now)
    waits[c] = wait
    if shared and changed then log.note_base(new, wanted[key]) end
    if wait and changed then
      touched[key], scratch[key] = true, new
      -- An emptied log is still stored when the next charge makes another.
      if new == nil then remains[key] = true end
    end
    if group[c] then
      has_group = true
      if wait and (not best or wait < best) then best = wait end
    elseif not wait then
      refused = true
    end
  end
  local found = {}
  for _, key in ipairs(logs) do found[key] = states[key] end
  local passes = not refused and (best or not has_group)
  if passes and not has_group then
    for key in pairs(touched) do commit(key, under[key], scratch[key]) end
  elseif passes then
    -- Decides again, on states without the group's unused charges.
    for c = 1, count do
      local key, t = keys[c], charges[c]
      if wanted[key] then log.note_cost(t.limit.plan, states[key], asked(t), wanted[key]) end
      if not group[c] or (waits[c] and waits[c] <= best) then
        local _, changed, new = t.limit.step.decide(t.limit.plan, states[key], t, now)
        if changed then commit(key, t.limit, new) end
        if changed and wanted[key] then log.note_base(new, wanted[key]) end
      end
    end
  end
  for _, key in ipairs(logs) do see_all(key, under[key], found[key], wanted[key]) end
  return passes and 'p' or 'd'
end

-- The same for a single charge in no group.
local function charge_one(key, t)
  local limit = t.limit
  if blocked[key] or ((under[key] ~= limit or spent[key]) and not load(key, limit)) then
    blocked[key] = true
    return 'u'
  elseif t.borrowed and states[key] == nil then
    blocked[key], prior[key] = true, prior[key] or ''
    return 'u'
  end
  local step, state = limit.step, states[key]
  if step.is_log then see(t, state) end
  local wait, changed, new = step.decide(limit.plan, state, t, now, true)
  if not wait then return 'd' end
  if changed then
    if new == nil then remains[key] = true end
    commit(key, limit, new)
  end
  return 'p'
end

-- Outcomes of one request, `times` times.
local function charge(count, flat, from, offset, times, dumps)
  local t = count == 1 and terms[flat[from + 2]]
  if t and times == 1 then return charge_one(flat[from + 1] + offset, t) end
  local each = {}
  for n = 1, times do
    if t then
      each[n] = charge_one(flat[from + 1] + offset, t)
    else
      each[n] = charge_several(count, flat, from, offset, dumps)
    end
  end
  return concat(each)
end

outcomes = decide(charge)
views = concat(seen)

function write_others()
  local gone, dirty, states, under, prior = {}, dirty, states, under, prior
  for i = 1, #KEYS do
    if dirty[i] then
      local key, state, limit = KEYS[i], states[i], under[i]
      -- A string that was converted for a request that stayed undecided is left as it was.
      if limit and state == nil then
        gone[#gone + 1] = key
      elseif limit and i > string_keys then
        log.write(key, limit.plan, limit.tag, state, now, remains[i])
      elseif limit then
        local value, idle = limit.step.encode(state, limit.tag), limit.step.idle(limit.plan, state)
        put(i, value, ttl(idle, now), prior[i])
      end
    end
  end
  for i, members in pairs(strays) do
    poisoned = poisoned + #members
    for _, stray in ipairs(members) do call('ZREM', KEYS[i], stray) end
  end
  for _, key in ipairs(gone) do call('UNLINK', key) end
end
