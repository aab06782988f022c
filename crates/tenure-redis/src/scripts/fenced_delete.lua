-- Deletes a value unless a higher token was seen for it.
--
-- KEYS  the key of the value, the key of its fence
-- ARGV  token
-- Reply 1 deleted, or not there · 0 stale: nothing changed · an error if it was called otherwise: nothing changed
--
-- The fence stays, for 30 days: a stale write must not bring the value back.

if #KEYS ~= 2 or #ARGV ~= 1 or not string.find(ARGV[1], '^%d+$') then
  return redis.error_reply('ERR give two keys, a token')
end
local seen = tonumber(redis.call('GET', KEYS[2]) or '0')
if tonumber(ARGV[1]) < seen then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], ARGV[1], 'EX', 2592000)
return 1
