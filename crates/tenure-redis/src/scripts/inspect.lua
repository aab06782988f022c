-- Who holds a lock and who waits, as of now. Changes nothing.
--
-- KEYS  the fence; then the main key, and where that is not also the base of the other keys, the base after it
-- ARGV  none
-- Reply {store µs, what the main key holds, expires in ms, record expires in ms, {id, expires (ms), entry...} of the other
--       holders, {id, place (µs), entry...} of those who wait}
--
-- The entries are as line.lua says; what has expired is left to the reader to leave out.

local time = redis.call('TIME')
local main, base = KEYS[2], KEYS[#KEYS]
local c, s, q, d = base .. ':c', base .. ':s', base .. ':q', base .. ':d'

local function entries(key)
  local list, all = redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES'), {}
  for i = 1, #list, 2 do
    all[#all + 1], all[#all + 2], all[#all + 3] = list[i], list[i + 1], redis.call('HGET', c, list[i]) or ''
  end
  return all
end

return {
  time[1] * 1000000 + time[2], redis.call('GET', main) or '', redis.call('PTTL', main),
  redis.call('PTTL', d), entries(s), entries(q)
}
