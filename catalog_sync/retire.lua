-- Deletes a manifest unless its model's pointer names the version. KEYS: pointer, manifest. ARGV: version.
-- A pointer moves only to a version that has a manifest, so afterwards none can.
if redis.call('HGET', KEYS[1], 'version') == ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[2])
