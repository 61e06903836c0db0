-- Deletes a chunk unless its version has a manifest. KEYS: manifest, chunk.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
return redis.call('UNLINK', KEYS[2])
