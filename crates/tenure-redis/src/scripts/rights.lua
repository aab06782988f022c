-- Which commands fail for this user. Changes nothing: they are run on a key that holds a string, which is of the wrong type
-- for most of them, or with an argument that is no number. The string is gone at the end, or after 0.1 s; time stands still in a script.
--
-- KEYS  a key that nobody uses, the fence, the main key of a lock
-- ARGV  a channel that nobody listens to
-- Reply {command, error, ...} of all that failed, for whatever reason

local key, fence, main = KEYS[1], KEYS[2], KEYS[3]
local failed = {}

local function try(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) ~= 'table' or not answer.err then
    return true
  end
  failed[#failed + 1] = command
  failed[#failed + 1] = answer.err
  return false
end

-- Without it, these would make keys that nothing removes.
if try('SET', key, '', 'PX', '100') then
  for _, command in ipairs({'LPUSH', 'RPUSH'}) do
    try(command, key, 'x')
  end
  for _, command in ipairs({'HSET', 'HSETNX'}) do
    try(command, key, 'x', 'x')
  end
end
try('TIME')
for _, command in ipairs({'GET', 'MGET', 'EXISTS', 'PTTL', 'LPOP', 'RPOP', 'LLEN', 'HLEN', 'HKEYS', 'ZCARD'}) do
  try(command, key)
end
for _, command in ipairs({'HGET', 'HEXISTS', 'HDEL', 'ZSCORE', 'ZREM', 'LPOS', 'LINDEX', 'PEXPIREAT'}) do
  try(command, key, 'x')
end
for _, command in ipairs({'LRANGE', 'ZRANGE', 'ZRANGEBYSCORE', 'LREM', 'ZADD', 'ZINCRBY'}) do
  try(command, key, 'x', 'x')
end
try('LINSERT', key, 'BEFORE', 'x', 'x')
try('PUBLISH', ARGV[1], '')
try('ZADD', fence, 'x', 'x')
try('PEXPIREAT', main, 'x')
try('DEL', key)
return failed
