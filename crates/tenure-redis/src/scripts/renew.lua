-- Renews claims. Never brings one back.
--
-- KEYS  per claim its main key; where that is not also the base of the other keys, the base after it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       then per claim two: value (label#id), ttl in ms
-- Reply {store µs, answer...}, or {store µs, 'L'} for all of them if the request came too late
--       answer: 1 renewed · 0 gone · {'V', reason} evicted · {'E', error}
--
-- A claim that holds lives for its ttl from now, or longer if it did already. If it does not hold alone, the line is
-- served first: its turn may have come, and another's, for some holder may be dead. A claim that does not hold then,
-- or that was evicted, is lost.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local run_id, floor = ARGV[1], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, 'L'}
end

-- @include line.lua

local function renew(value, ttl)
  if redis.call('GET', main) == value then
    extend(main, now + ttl)
    extend_fence()
    return 1
  end
  local id = string.sub(value, -32)
  look()
  serve()
  local known = claim_of(id)
  local _, said = grave(id)
  if held == MARK .. value and fence().id == id then
    said = fence().said
  elseif known then
    said = known.said
  end
  if said then
    return {'V', said}
  end
  if held == value then
    extend(main, now + ttl)
    return 1
  end
  if known and known.kind == 'h' then
    prolong(id, known, ttl)
    return 1
  end
  return 0
end

local stride = #KEYS / ((#ARGV - 4) / 2)
local replies = {now_us}
for i = 1, (#ARGV - 4) / 2 do
  begin(KEYS[stride * (i - 1) + 1], KEYS[stride * i])
  local ok, answer = pcall(renew, unpack(ARGV, 2 * i + 3, 2 * i + 4))
  replies[i + 1] = ok and answer or failure(answer)
end
return replies
