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

local stride = #KEYS / ((#ARGV - 4) / 2)
local slow
local replies = {0}
for i = 1, (#ARGV - 4) / 2 do
  local main = KEYS[stride * (i - 1) + 1]
  if
    redis.pcall('GET', main) == ARGV[2 * i + 3]
    and ARGV[2 * i + 4] == 'c'
    and redis.call('EXISTS', KEYS[stride * i] .. ':c') == 0
  then
    redis.call('DEL', main)
    replies[i + 1] = 'H'
  else
    slow = slow or {}
    slow[#slow + 1] = i
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
