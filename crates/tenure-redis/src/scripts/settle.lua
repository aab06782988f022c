-- Ends a do-once with its result.
--
-- KEYS  the fence; then the main key, in a cluster every other key of the lock, and last the base of these keys, if the main
--       key alone does not say it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       value (label#id), outcome, how long to keep it in ms
-- Reply {store µs, until, answer}; answer: 1 recorded · 0 not held · {'E', error} · 'L' too late
--
-- Only the claim that holds, unexpired and not evicted, settles; the one that settled before is told so again. Nobody
-- needs the lock any more then: the whole line is told to look, and finds the record.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local fence, run_id, floor = KEYS[1], ARGV[1], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, ARGV[4], 'L'}
end

-- @include line.lua

local function settle(value, outcome, keep)
  local id = string.sub(value, -32)
  look()
  serve()
  local record = redis.call('GET', d)
  if record and string.sub(record, 1, 32) == id then
    return 1
  end
  if not held or held.value ~= value or held.marked or (held.mode or 'o') ~= 'o' then
    return 0
  end
  redis.call('DEL', main)
  held = false
  redis.call('SET', d, id .. '\n' .. outcome, 'PXAT', whole(now + keep))
  for _, waiting in ipairs(redis.call('LRANGE', q, '0', '-1')) do
    local claim = claim_of(waiting)
    if claim then
      publish(claim.channel, 'L\n' .. waiting)
    end
  end
  redis.call('DEL', q, c)
  return 1
end

begin(KEYS[2], KEYS[#KEYS])
local ok, answer = pcall(settle, unpack(ARGV, 5, 7))
return {now_us, ARGV[4], ok and answer or failure(answer)}
