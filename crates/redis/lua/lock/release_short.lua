-- The short cut of a release: the lock is held once, by this hold, and has no lock-delay. It answers as
-- `release.lua` would, which says what the arguments are; whatever else there is, it leaves to that, with
-- nothing written.

local beside = call('MGET', KEYS[2], KEYS[3])
if beside[1] and not beside[2] then
  local fence, delay, owner, holds = match(beside[1], '^1 (%d+) %d+ %d+ (%d+) (%S+) (%S+) ')
  if holds == ARGV[5] and owner == ARGV[4] and delay == '0' and #fence <= 16 and tonumber(fence) <= MAX_FENCE then
    local once
    if ARGV[3] == 'r' then
      once = redis.pcall('HGET', KEYS[1], owner) == '1'
    else
      once = redis.pcall('GET', KEYS[1]) == owner
    end
    if once then
      call('DEL', KEYS[1])
      -- A user who may not publish releases all the same; who waits then asks by itself.
      redis.pcall(ARGV[8], KEYS[4], '0')
      call('SET', KEYS[3], '1', 'PX', ARGV[7])
      return { stamp, '1' }
    end
  end
end
