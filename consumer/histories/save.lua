-- Saves a user's history if it is still what the writer knows: one step for every reader.
-- KEYS: the user's hash. ARGV: expected head, new head, field of the chunk, chunk, 1 to replace all chunks, life in ms.
-- Returns 1, or 0 where the head is another. What is no hash has none, and is replaced.
local found = redis.pcall('HGET', KEYS[1], 'head')
if (type(found) == 'string' and found or '') ~= ARGV[1] then
  return 0
end
if ARGV[5] == '1' then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'head', ARGV[2], ARGV[3], ARGV[4])
if ARGV[6] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
else
  redis.call('PERSIST', KEYS[1])
end
return 1
