-- Who holds a lock and who waits, as of now. Changes nothing.
--
-- KEYS  the fence; then the main key, in a cluster every other key of the lock, and last the base of these keys, if the main
--       key alone does not say it
-- ARGV  a number that names the request
-- Reply {store µs, that number, what the main key holds or nil, expires in ms, record expires in ms, {id, expires (ms),
--       entry...} of the other holders, {id, entry...} of those who wait}
--
-- The entries are as line.lua says; what has expired is left to the reader to leave out.

local time = redis.call('TIME')
local main, base = KEYS[2], KEYS[#KEYS]
local c, s, q, d = base .. ':c', base .. ':s', base .. ':q', base .. ':d'

-- Puts what is known of each id after it and what follows it.
local function with_entries(list, stride)
  local all = {}
  for i = 1, #list, stride do
    for k = i, i + stride - 1 do
      all[#all + 1] = list[k]
    end
    all[#all + 1] = redis.call('HGET', c, list[i]) or ''
  end
  return all
end

return {
  time[1] * 1000000 + time[2], ARGV[1], redis.call('GET', main), redis.call('PTTL', main),
  redis.call('PTTL', d), with_entries(redis.call('ZRANGE', s, '0', '-1', 'WITHSCORES'), 2),
  with_entries(redis.call('LRANGE', q, '0', '-1'), 1)
}
