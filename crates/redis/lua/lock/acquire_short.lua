-- The short cut of an acquisition: the lock is free and nothing is against it, or somebody else has it,
-- or it is over.
-- It answers as `acquire.lua` would, which says what the arguments are; whatever else there is, it leaves
-- to that, with nothing written.

local beside = call('MGET', KEYS[2], KEYS[3])
-- An acquisition that was slower than its own release. It does not even look at the lock, which may
-- have ended by that.
if beside[2] then return { stamp, 'over' } end

local ttl = call('PTTL', KEYS[1])
do
  local owner = ARGV[4]
  if ttl == -2 then
    local open, last, barred = not beside[1]
    if beside[1] then
      last, barred = match(beside[1], '^1 (%d+) %d+ (%d+) %d+ %S+ %S+ ')
      open = barred == '0' and #last <= 16 and tonumber(last) < now
    end
    if open and ARGV[7] == '0' and now <= MAX_FENCE then
      if ARGV[3] == 'r' then
        call('HSET', KEYS[1], owner, '1')
        call('PEXPIRE', KEYS[1], ARGV[6])
      else
        call('SET', KEYS[1], owner, 'PX', ARGV[6])
      end
      local side = '1 ' .. stamp .. ' ' .. stamp .. ' 0 0 ' .. owner .. ' ' .. ARGV[5] .. ' ' .. ARGV[8]
      call('SET', KEYS[2], side, 'PX', ARGV[9])
      return { stamp, 'granted', stamp, '1' }
    end
  else
    local found
    if ARGV[3] == 'r' then
      found = redis.pcall('HGET', KEYS[1], owner)
    else
      found = redis.pcall('GET', KEYS[1])
      if type(found) == 'string' and found ~= owner then found = false end
    end
    if found == false then return { stamp, 'busy', fmt('%.0f', ttl) } end
  end
end
