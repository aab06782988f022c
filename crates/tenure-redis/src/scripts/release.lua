-- Ends claims, held or waiting, and hands their locks over.
--
-- KEYS  per claim its main key; where that is not also the base of the other keys, the base after it
-- ARGV  run id of the server, channel of this process, highest token seen, 0;
--       then per claim two: value (label#id), trail: c clean, d doubtful
-- Reply {store µs or 0, answer...}; answer: 'H' held · 'W' waited · 'A' absent · {'E', error}
--
-- A claim that holds alone while nobody waits is simply deleted. Otherwise the claim is removed wherever it stands,
-- and the line is served: one command hands the lock over, however many wait. After a doubtful trail a tombstone
-- stays, so that an attempt of this claim that arrives later does nothing. Works in a full store: it removes first.

local count = (#ARGV - 4) / 2
local stride = #KEYS / count
local slow
local replies = {0}
if count == 1 then
  if
    redis.pcall('GET', KEYS[1]) == ARGV[5]
    and ARGV[6] == 'c'
    and redis.call('EXISTS', KEYS[stride] .. ':c') == 0
  then
    redis.call('DEL', KEYS[1])
    replies[2] = 'H'
  else
    slow = {1}
  end
else
  -- Looked at in two calls and deleted in a third: a call costs more than a key.
  local mains, lines, freed = {}, {}, {}
  for i = 1, count do
    mains[i], lines[i] = KEYS[stride * (i - 1) + 1], KEYS[stride * i] .. ':c'
  end
  local known = redis.call('MGET', unpack(mains))
  local nobody_waits = redis.call('EXISTS', unpack(lines)) == 0
  for i = 1, count do
    if
      known[i] == ARGV[2 * i + 3]
      and ARGV[2 * i + 4] == 'c'
      and (nobody_waits or redis.call('EXISTS', lines[i]) == 0)
    then
      freed[#freed + 1] = mains[i]
      replies[i + 1] = 'H'
    else
      slow = slow or {}
      slow[#slow + 1] = i
    end
  end
  if freed[1] then
    redis.call('DEL', unpack(freed))
  end
end
if not slow then
  return replies
end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local run_id, floor = ARGV[1], tonumber(ARGV[3])

-- @include line.lua

local function release(value, trail)
  local id, answer = string.sub(value, -32), 'A'
  look()
  if held == value or held == MARK .. value then
    redis.call('DEL', main)
    held, answer = false, 'H'
  else
    local known = claim_of(id)
    if known and known.kind == 'h' then
      redis.call('ZREM', s, id)
      redis.call('HDEL', c, id)
      answer = 'H'
    elseif known then
      forget(id)
      answer = 'W'
    end
  end
  if trail == 'd' then
    bury(id, now + @TOMBSTONE_MS@)
  end
  serve()
  return answer
end

replies[1] = now_us
for _, i in ipairs(slow) do
  begin(KEYS[stride * (i - 1) + 1], KEYS[stride * i])
  local ok, answer = pcall(release, ARGV[2 * i + 3], ARGV[2 * i + 4])
  replies[i + 1] = ok and answer or failure(answer)
end
return replies
