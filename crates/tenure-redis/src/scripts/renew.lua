-- Renews claims. Never brings one back.
--
-- KEYS  the fence; then per claim its main key, in a cluster every other key that it may have, and last the base of these keys,
--       if the main key alone does not say it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       then per claim two: value (label#id), ttl in ms
-- Reply {store µs, until, answer...}, or {store µs, until, 'L'} for all of them if the request came too late
--       answer: 1 renewed · 0 gone · {'V', reason} evicted · {'E', error}
--
-- A claim that holds lives for its ttl from now, or longer if it did already. If it does not hold alone, the line is
-- served first: its turn may have come, and another's, for some holder may be dead. A claim that does not hold then,
-- or that was evicted, is lost.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local fence, run_id, floor = KEYS[1], ARGV[1], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, ARGV[4], 'L'}
end
local count = (#ARGV - 4) / 2
local stride = (#KEYS - 1) / count
local replies, slow = {now_us, ARGV[4]}, nil
local mains = {}
for i = 1, count do
  mains[i] = KEYS[stride * (i - 1) + 2]
end

-- Those that hold alone, as nearly all do.
local known = redis.call('MGET', unpack(mains))
for i = 1, count do
  local text, value, ttl = known[i], ARGV[2 * i + 3], ARGV[2 * i + 4]
  local length = #value
  if text and string.sub(text, 1, length) == value and (string.byte(text, length + 1) or 10) == 10 then
    if redis.call('PTTL', mains[i]) < tonumber(ttl) then
      redis.call('PEXPIREAT', mains[i], string.format('%d', now + ttl))
    end
    replies[i + 2] = 1
  else
    slow = slow or {}
    slow[#slow + 1] = i
  end
end
if redis.call('PTTL', fence) < @FENCE_MIN_MS@ then
  redis.call('PEXPIREAT', fence, string.format('%d', now + @FENCE_MS@))
end
if not slow then
  return replies
end

-- @include line.lua

local function renew(value, ttl)
  local id = string.sub(value, -32)
  look()
  serve()
  local known = claim_of(id)
  local _, said = grave(id)
  if held and held.value == value and held.marked then
    said = held.said
  elseif known then
    said = known.said
  end
  if said then
    return {'V', said}
  end
  if held and held.value == value and not held.marked then
    extend(main, now + ttl)
    return 1
  end
  if known and known.kind == 'h' then
    prolong(id, known, ttl)
    return 1
  end
  return 0
end

for _, i in ipairs(slow) do
  begin(mains[i], KEYS[stride * i + 1])
  local ok, answer = pcall(renew, ARGV[2 * i + 3], tonumber(ARGV[2 * i + 4]))
  replies[i + 2] = ok and answer or failure(answer)
end
return replies
