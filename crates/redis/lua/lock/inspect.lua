-- Describes a lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its sidecar
-- KEYS[3]  the channel
--
-- Returns now_us and the result of `describe`.

return { stamp, describe(KEYS[1], KEYS[2], KEYS[3]) }
