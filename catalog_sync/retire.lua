-- Deletes a manifest unless the pointer was moved since somebody looked at what it needs.
-- KEYS: pointer, manifest. ARGV: the generation that was seen. Returns 1, or 0: another generation.
-- A pointer moves only to a version that has a manifest, so afterwards none can move to this one.
if (redis.call('HGET', KEYS[1], 'generation') or '0') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[2])
return 1
