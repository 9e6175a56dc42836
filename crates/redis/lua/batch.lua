-- The batch: reads every key, decides every request in order, writes every changed key once.
--
-- KEYS     the counters: strings first, then logs
-- ARGV[1]  not_after: microseconds of server time from which nothing is to be charged; 0 if unknown
-- ARGV[2]  the batch's id; empty if it is never sent again
-- ARGV[3]  `<I1` 1 if every charge is one for takes.lua, 2 if they are uniform and what uniform_takes.lua
--          needs for them (`I2` number of keys, `I1` length and bytes of tag, format of a value, format
--          of one among others, `dd` full burst, span of the cost), else 0; `I2I2I2` numbers of string
--          keys, limits and terms; the limits (`I1` code, `I1` length and bytes of tag, `I1` length and
--          bytes of plan); the terms (`I2I1` limit and operation, `dddddd` cost, its span, patience,
--          moment, lease, and 16 bytes of holder); an operation above 15 is judged by the limit that its
--          counter was found under, which is not the charge's own: only while that is so
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
-- length, an excerpt; the lengths of what follows, `I4` each, 4294967295 for nothing, or one that all
-- have; and what each key held before: a string, or for a log of another limit `I1` length of tag, tag and
-- `I8` its newest moment, and nothing for one that is under the limit of its charge; an empty string if the
-- counter from which a charge borrows its limit is gone. After uniform takes all have one length, and what
-- was absent is told as a bucket that has been full since the epoch.
--
-- Nothing is written before all is decided, and then only by commands that cannot fail. The
-- exception is a conversion, which replaces what was read by what it means under another limit.

-- What Redis may refuse for want of memory comes first; once a script has written, it may go on.
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
