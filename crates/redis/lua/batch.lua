-- The batch: reads every key, decides every request in order, writes every changed key once.
--
-- KEYS     the counters: strings first, then logs
-- ARGV[1]  not_after: microseconds of server time after which nothing is charged; 0 if unknown
-- ARGV[2]  the batch's id; empty if it is never sent again
-- ARGV[3]  `<I1` 1 if takes.lua can decide every charge; 2 if the takes are uniform, with the fields for
--          uniform_takes.lua (`I2` number of keys, `I1` length and bytes of tag, of the format of a value
--          and of the format of one among others, `dd` full burst, span of the cost); else 0. `I2I2I2`
--          numbers of string keys, limits and terms. The limits (`I1` code, `I1` length and bytes of tag,
--          `I1` length and bytes of plan). The terms (`I2I1` limit and operation, `dddddd` cost, its span,
--          patience, moment, lease, and 16 bytes of holder). An operation above 15 is judged by the limit
--          that its counter was found under, not by the charge's own, and only while it is under that
-- ARGV[4]  the requests. Of several charges: `I1` charges of each and a flag (128: some share a log), `I2`
--          number of requests, for each charge `I2I2` key and term; a term above 32767 is one of a group
--          of which any suffices. A repeated request: `I1` 127, `I2` repetitions, `I1` number of charges,
--          and those. Of one charge each: `I1` 0, `I2` number of runs, and for each `I2I2I2I2` first key,
--          term, number of consecutive keys, and repetitions of each
-- ARGV[5…] conversions, three each: the number of a key, its expected value (of a log: its tag), and the
--          value under another limit (of a log: the action, see `log.convert`); empty if none is left
--
-- Returns one string: `<I8` time, `I4` number of foreign values found, `I4I4I4` lengths of the first three
-- of four parts, and these:
--   1. the outcome of each request: p passes, d is refused, u undecided (a key is under another limit)
--   2. the logs, in order: a view of three `I8` for each charge; where charges share a log, `I4` length
--      and a dump or, if 2147483648 was added to the length, an excerpt
--   3. the lengths of the prior values, `I4` each, 4294967295 for none; or one length that all have
--   4. the prior value of each key: a string; of a log under another limit `I1` length of tag, tag and
--      `I8` newest moment; none of a log under its charge's limit; an empty string if the counter from
--      which a charge borrows its limit is gone
-- After uniform takes all values have one length, and absent ones are buckets full since the epoch.
--
-- Nothing is written before all is decided, and then only by commands that cannot fail. The
-- exception is a conversion, which replaces a stored value by its meaning under another limit.

-- Writes that may run out of memory come first: once a script has written, it may go on.
local keys = KEYS
for key = 1, string_keys do
  local limit = holds[key]
  if limit and limit ~= '' and limit ~= prior[key] then
    local a, b = first[key], second[key]
    local idle = a
    if limit.window then idle = a + limit.window elseif b > 0 then idle = a + 1 end
    if idle ~= limit.idle then limit.idle, limit.px = idle, fmt('%d', (idle - now) / 1000 + 1) end
    local value = pack(limit.format, limit.tag, a, b)
    if prior[key] then
      call('SET', keys[key], value, 'PX', limit.px)
    else
      put(key, value, limit.px)
    end
  end
end
if write_others then write_others() end

local lengths = { unpack(KEYS) }
for key = 1, #KEYS do
  local value = prior[key]
  if value then lengths[key] = #value else lengths[key], prior[key] = 4294967295, '' end
end
lengths = pack('<' .. rep('I4', #KEYS), unpack(lengths))
return answer(outcomes, poisoned, views, lengths, concat(prior))
