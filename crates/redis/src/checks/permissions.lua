-- Tries commands and tells which were refused.
--
-- KEYS[i]  keys of the check's own
-- ARGV[i]  a command in words; $1 stands for KEYS[1] and so on
--
-- Returns, for each command that failed, its name and the error.

local failed = {}
for _, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = KEYS[tonumber(string.match(word, '^%$(%d+)$'))] or word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = words[1]
    failed[#failed + 1] = reply.err
  end
end
return failed
