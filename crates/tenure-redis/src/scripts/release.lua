-- Ends claims, held or waiting, and hands their locks over.
--
-- KEYS  per claim seven: main :c :t :f :s :q :d
-- ARGV  run id of the server, channel of this process, highest token seen, 0;
--       then per claim two: value (label#id), trail: c clean, d doubtful
-- Reply {store µs or 0, answer...}; answer: 'H' held · 'W' waited · 'A' absent · {'E', error}
--
-- A claim that holds alone while nobody waits is simply deleted. Otherwise the claim is removed wherever it stands,
-- and the line is served: one command hands the lock over, however many wait. After a doubtful trail a tombstone
-- stays, so that an attempt of this claim that arrives later does nothing. Works in a full store: it removes first.

local main, c, t, f, s, q, d
local slow
local replies = {0}
for i = 0, #KEYS / 7 - 1 do
  local value = ARGV[2 * i + 5]
  local known = redis.pcall('GET', KEYS[7 * i + 1])
  if known == value and ARGV[2 * i + 6] == 'c' and redis.call('EXISTS', KEYS[7 * i + 2]) == 0 then
    redis.call('DEL', KEYS[7 * i + 1])
    replies[i + 2] = 'H'
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
  local known = claim_of(id)
  if held == value or held == MARK .. value then
    redis.call('DEL', main)
    held, answer = false, 'H'
  elseif known and known.kind == 'h' then
    redis.call('ZREM', s, id)
    redis.call('HDEL', c, id)
    answer = 'H'
  elseif known then
    forget(id)
    answer = 'W'
  end
  if trail == 'd' then
    bury(id, now + @TOMBSTONE_MS@)
  end
  serve()
  return answer
end

replies[1] = now_us
for _, i in ipairs(slow) do
  begin(unpack(KEYS, 7 * i + 1, 7 * i + 7))
  local ok, answer = pcall(release, ARGV[2 * i + 5], ARGV[2 * i + 6])
  replies[i + 2] = ok and answer or failure(answer)
end
return replies
