-- Moves a model's pointer if it still has the expected generation, and announces it: one step for every reader.
-- KEYS: pointer, manifest, quarantine. ARGV: expected generation, version, manifest hash, history, channel.
-- Returns {moved (1, 0: another generation, -1: no manifest, -2: quarantined), generation}.
local generation = tonumber(redis.call('HGET', KEYS[1], 'generation') or '0')
if generation ~= tonumber(ARGV[1]) then
  return {0, string.format('%.0f', generation)}
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  return {-1, string.format('%.0f', generation)}
end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 then
  return {-2, string.format('%.0f', generation)}
end
-- the clock keeps generations growing even after the pointer was lost
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local next_generation = string.format('%.0f', math.max(generation + 1, now))
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'generation', next_generation, 'manifest', ARGV[3], 'history', ARGV[4])
redis.call('PUBLISH', ARGV[5], next_generation)
return {1, next_generation}
