-- Writes a value unless a higher token was seen for it.
--
-- KEYS  the key of the value, the key of its fence
-- ARGV  token, value
-- Reply 1 written · 0 stale: nothing changed · an error if it was called otherwise: nothing changed
--
-- The fence holds the highest token seen, and is kept for 30 days after its last use.

if #KEYS ~= 2 or #ARGV ~= 2 or not string.find(ARGV[1], '^%d+$') then
  return redis.error_reply('ERR give two keys, a token and a value')
end
local seen = tonumber(redis.call('GET', KEYS[2]) or '0')
if tonumber(ARGV[1]) < seen then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', 2592000)
redis.call('SET', KEYS[1], ARGV[2])
return 1
