-- The batch: reads every key, decides every request in order, writes every changed key once.
--
-- KEYS     the counters: strings first, then logs
-- ARGV[1]  not_after: microseconds of server time from which nothing is to be charged; 0 if unknown
-- ARGV[2]  the batch's id; empty if it is never sent again
-- ARGV[3]  `<I1` what may be tried first: 0 nothing, 3 takes from windows (windows.lua), 2 takes from
--          buckets (plain.lua), 1 equal ones of those, and what is needed for them
--          (`I2` number of keys, `I1` length and bytes of tag, format of a value, format of one among
--          others, `dd` full burst, span of the cost); `I2I2I2` numbers of string keys, limits and
--          terms; the limits (`I1I1` code and length of tag, tag, plan); the terms (`I2I1` limit and
--          operation, `dddddd` cost, its span, patience, moment, lease, and 16 bytes of holder); an
--          operation above 15 is judged by the limit that its counter was found under, which is not
--          the charge's own: only while that is so
-- ARGV[4]  the requests. Of several charges: `I1` how many each and a flag (128: some share a log), `I2`
--          how many requests, for each charge `I2I2` key and term; a term above 32767 is one of a group
--          of which any suffices. The same request several times: `I1` 127, `I2` how often, `I1` how
--          many charges, and those. Of one charge each: `I1` 0, `I2` how many runs, and for each
--          `I2I2I2I2` first key, term, how many keys from that on, and how often each
-- ARGV[5…] conversions, three each: the number of a key, what is expected there (of a log: its tag),
--          and what that means under another limit (of a log: how it is carried over, see
--          `log.convert`); nothing if it means nothing
--
-- Returns one string: `<I8` the time, `I4` how many foreign values were found, and `I4I4I4` the lengths of
-- the first three of four parts that follow. One outcome for each request (p passes, d is refused, u
-- undecided: a key was counted under another limit); what is seen of logs, in order: a view of three `I8`
-- for each charge, or where several share one, `I4` length and a dump or, if 2147483648 was added to the
-- length, a excerpt; the lengths of what follows, `I4` each, 4294967295 for nothing, or one that all have;
-- and what each key held before: a string, or for a log of another limit `I1` length of tag, tag and `I8`
-- its newest moment, and nothing for one that is under the limit of its charge; an empty string if the
-- counter from which a charge borrows its limit is gone. After equal takes, where all have one length,
-- what was absent is told as a bucket that has been full since the epoch.
--
-- Nothing is written before all is decided, and then only by commands that cannot fail. The
-- exception is a conversion, which replaces what was read by what it means under another limit.

local program = ARGV[4]

local NOTHING = 4294967295

-- Added to the length of a excerpt of a log.
local EXCERPT = 2147483648

local function step_of(code)
  if not steps[code] then make(code) end
  return steps[code]
end

local string_keys, limit_count, term_count, position = unpack_('<I2I2I2', packed, header)
local limits, terms = {}, {}
for i = 1, limit_count do
  local code, length
  code, length, position = unpack_('<I1I1', packed, position)
  local limit = { step = step_of(code), tag = sub_(packed, position, position + length - 1) }
  limit.at, limit.length, limit.format = length + 1, length + 16, fmt('<c%dI8I8', length)
  limit.plan, position = limit.step.plan(packed, position + length)
  limits[i] = limit
end
for i = 1, term_count do
  local limit, op, cost, w, p, patience, at, lease, holder
  limit, op, cost, w, p, patience, at, lease, holder, position =
    unpack_('<I2I1ddddddc16', packed, position)
  limit = limits[limit]
  local borrowed = op > 15
  if borrowed then op = op - 16 end
  terms[i] = {
    limit = limit, op = op, cost = cost, w = w, p = p, patience = patience, at = at, lease = lease,
    holder = holder, borrowed = borrowed,
    run = op == 1 and cost > 0 and patience == 0 and not borrowed and limit.step.run,
  }
end

-- Per key: what it held; the limit its state is under, nil before the key is looked at; the state,
-- nil if absent; whether it must be written; whether it has just become idle; whether a request
-- before was left undecided on it.
local prior, under, states, dirty, spent, blocked = {}, {}, {}, {}, {}, {}

-- Besides those, what a run of takes made of a key that nothing else has looked at: the value to be
-- stored, and when it is idle.
local fresh, idle_at = {}, {}

-- Logs' keys under which there is something that is of no use: foreign, idle, or emptied.
local remains = {}

if string_keys > 0 then
  prior = call('MGET', unpack(KEYS, 1, string_keys))
end
-- What was converted; and the lengths of what is returned, see above.
local converted, lengths = {}, {}
for i = 1, string_keys do
  local value = prior[i]
  if not value then
    lengths[i] = NOTHING
  elseif #value > MAX_VALUE or value == '' then
    -- Nothing of ours is empty or that long, and nobody shall have it sent to and fro.
    poisoned, dirty[i], converted[i], prior[i], lengths[i] = poisoned + 1, true, '', '', 0
  else
    lengths[i] = #value
  end
end

local log = #KEYS > string_keys and step_of(1)

for i = 5, #ARGV, 3 do
  local key, expected, new = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  if key > string_keys then
    if log.tag(KEYS[key]) == expected and log.convert(KEYS[key], expected, new, now) then
      poisoned = poisoned + 1
    end
  elseif prior[key] == expected then
    converted[key], dirty[key] = new, true
  end
end

-- Makes the state of a key ready for a charge under this limit; false if it is under another.
local function load(i, limit)
  local step, tag = limit.step, limit.tag
  if spent[i] then states[i], spent[i] = nil, nil end
  if under[i] then
    -- Looked at before in this batch, and absent: it may come under any limit.
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
  local value = fresh[i] or converted[i] or prior[i]
  if value and value ~= '' then
    if find(value, tag, 1, true) ~= 1 then return false end
    if fresh[i] then fresh[i], dirty[i] = nil, true end
    local state = step.decode(limit.plan, value, limit.at)
    if state and converted[i] and step.idle(limit.plan, state) <= now then
      -- What is left after a conversion may be worth nothing; it counts until it is looked at again.
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

-- What is seen of logs, in order; and per key the members of a log that are not ours.
local views, strays = {}, {}

-- Puts a new state in the place of a key's. One that was given back all it had counts until the
-- next request looks at it, as it does in the core.
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
  views[#views + 1] = pack('<I8I8I8', log.view(t.limit.plan, state, asked(t), now))
end

-- What the charges of one request see of a log that several of them share: all of it, or a excerpt.
local function see_all(i, limit, state, wanted)
  local excerpt = log.excerpt(limit.plan, state, wanted, now)
  if excerpt then
    views[#views + 1] = pack('<I4', #excerpt + EXCERPT) .. excerpt
    return
  end
  local dump, found = log.dump(limit.plan, state, now)
  views[#views + 1] = pack('<I4', #dump) .. dump
  if #found > 0 then strays[i] = found end
end

-- So many equal requests, each of takes from different buckets or windows, the way nearly every request
-- of several charges goes: from what is stored to what is to be stored, see `bucket.run`. Nil, and
-- nothing done, if they are not that.
local plain_keys, plain_values, plain_idles, plain_counts = {}, {}, {}, {}
local function charge_plainly(count, flat, first, times)
  local passing, stale = times, false
  for c = 1, count do
    local key, t = flat[first + 2 * c - 1], terms[flat[first + 2 * c]]
    local run = t and t.run
    if not run or under[key] or blocked[key] or converted[key] then return nil end
    for before = 1, c - 1 do
      if plain_keys[before] == key then return nil end
    end
    local passed, value, idle, was_idle = run(t.limit, fresh[key] or prior[key], t, now, times)
    if not passed then return nil end
    if passed < passing then passing = passed end
    if was_idle then stale = true end
    plain_keys[c], plain_values[c], plain_idles[c], plain_counts[c] = key, value, idle, passed
  end
  -- What is idle is dropped even if the request is refused.
  if passing == 0 then return not stale and rep('d', times) or nil end
  for c = 1, count do
    local key, value, idle = plain_keys[c], plain_values[c], plain_idles[c]
    if plain_counts[c] > passing then
      local t, _ = terms[flat[first + 2 * c]]
      _, value, idle = t.run(t.limit, fresh[key] or prior[key], t, now, passing)
    end
    fresh[key], idle_at[key] = value, idle
  end
  return rep('p', passing) .. rep('d', times - passing)
end

-- A request of several charges, all or none. Their keys and terms are in `flat`, after `first`.
local function charge_several(count, flat, first, dumps)
  local keys, charges, group = {}, {}, {}
  local decidable = true
  for c = 1, count do
    local key, term = flat[first + 2 * c - 1], flat[first + 2 * c]
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
  -- Of the logs, in order: what is to be known of each, and the sum of what was taken.
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
      -- What it is told if it may not charge, and when all would pass together.
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
      -- A log that is emptied is still there when the next charge makes another.
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
    -- What an earlier charge of a group would have left is not what is there.
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

-- The same of one charge that is in no group.
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

local outcomes = {}

local r, at, length = 0, 1, #program
while at <= length do
  local count = byte(program, at)
  if count == 0 then
    -- Runs of equal requests of one charge each.
    local runs
    runs, at = unpack_('<I2', program, at + 1)
    local flat = { unpack_('<' .. rep('I2I2I2I2', runs), program, at) }
    for i = 1, 4 * runs, 4 do
      local term, times = flat[i + 1], flat[i + 3]
      local t = terms[term]
      local run = t and t.run
      for key = flat[i], flat[i] + flat[i + 2] - 1 do
        r = r + 1
        local passed, value, idle
        if run and not under[key] and not blocked[key] and not converted[key] then
          passed, value, idle = run(t.limit, fresh[key] or prior[key], t, now, times)
        end
        if passed then
          if value then fresh[key], idle_at[key] = value, idle end
          if times == 1 then
            outcomes[r] = passed == 1 and 'p' or 'd'
          else
            outcomes[r] = rep('p', passed) .. rep('d', times - passed)
          end
        elseif t and times == 1 then
          outcomes[r] = charge_one(key, t)
        else
          local each = {}
          for n = 1, times do
            each[n] = t and charge_one(key, t) or charge_several(1, { key, term }, 0)
          end
          outcomes[r] = concat(each)
        end
      end
    end
    at = at + 8 * runs
  elseif count == 127 then
    -- One request of several charges, so many times.
    local times
    times, count, at = unpack_('<I2I1', program, at + 1)
    local flat = { unpack_('<' .. rep('I2I2', count), program, at) }
    at = at + 4 * count
    r = r + 1
    outcomes[r] = charge_plainly(count, flat, 0, times)
    if not outcomes[r] then
      local each = {}
      for n = 1, times do each[n] = charge_several(count, flat, 0) end
      outcomes[r] = concat(each)
    end
  else
    local dumps = count > 127
    if dumps then count = count - 128 end
    local requests
    requests, at = unpack_('<I2', program, at + 1)
    local flat = { unpack_('<' .. rep('I2I2', count * requests), program, at) }
    for first = 0, 2 * count * (requests - 1), 2 * count do
      r = r + 1
      outcomes[r] = charge_plainly(count, flat, first, 1) or charge_several(count, flat, first, dumps)
    end
    at = at + 4 * count * requests
  end
end

local function store(i, value, idle)
  put(i, value, ttl(idle, now), prior[i])
end

-- What Redis may refuse for want of memory comes first; once a script has written, it may go on.
local gone = {}
for i = 1, #KEYS do
  if fresh[i] then
    store(i, fresh[i], idle_at[i])
  elseif dirty[i] then
    local key, state, limit = KEYS[i], states[i], under[i]
    -- A string that was converted for a request that stayed undecided is left as it was.
    if limit and state == nil then
      gone[#gone + 1] = key
    elseif limit and i > string_keys then
      log.write(key, limit.plan, limit.tag, state, now, remains[i])
    elseif limit then
      store(i, limit.step.encode(state, limit.tag), limit.step.idle(limit.plan, state))
    end
  end
end

for i, members in pairs(strays) do
  poisoned = poisoned + #members
  for _, stray in ipairs(members) do call('ZREM', KEYS[i], stray) end
end
for _, key in ipairs(gone) do call('UNLINK', key) end

for i = 1, #KEYS do
  if not prior[i] then
    lengths[i], prior[i] = NOTHING, ''
  elseif i > string_keys then
    lengths[i] = #prior[i]
  end
end
lengths = pack('<' .. rep('I4', #KEYS), unpack(lengths))
return answer(concat(outcomes), poisoned, concat(views), lengths, concat(prior))
