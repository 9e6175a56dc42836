-- Lengthens the leases of locks that are still held.
--
-- KEYS[2i-1], KEYS[2i]  the i-th lock and its sidecar
-- ARGV[4i-1]            'r' for a re-entrant lock, 's' for a simple one
-- ARGV[4i]              its owner
-- ARGV[4i+1]            its fence
-- ARGV[4i+2]            the lease in milliseconds
--
-- Returns now_us and an outcome each: 'h' if it is held, 'l' if it is lost. A lost lock is not touched:
-- it belongs to another.

local outcomes = {}
for i = 1, #KEYS / 2 do
  local lock, place = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, lease = ARGV[4 * i], tonumber(ARGV[4 * i + 2])
  local found = look(ARGV[4 * i - 1], lock, owner)
  outcomes[i] = 'l'
  if type(found) == 'number' then
    -- As `read`, without the fields not needed here.
    local side = call('MGET', place)[1]
    local fence, delay, holder = match(side or '', '^1 (%d+) %d+ %d+ (%d+) (%S+) %S+ ')
    if holder == owner and fence == ARGV[4 * i + 1] then
      local ttl = lengthen(lock, call('PTTL', lock), lease)
      if delay == '0' then
        call('PEXPIRE', place, fmt('%.0f', ttl + DAY))
      else
        note(place, read(side), ttl)
      end
      outcomes[i] = 'h'
    end
  end
end
return { stamp, concat(outcomes) }
