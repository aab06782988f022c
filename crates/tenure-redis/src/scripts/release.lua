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
  local main, base = KEYS[1], KEYS[stride]
  local c = base .. ':c'
  slow = {1}
  if redis.pcall('GET', main) == ARGV[5] and ARGV[6] == 'c' then
    if redis.call('EXISTS', c) == 0 then
      redis.call('DEL', main)
      return {0, 'H'}
    end
    -- The usual hand-over, written out: from one that held alone to the first in line, which wants the same. Whatever
    -- is not so is left to the general way below, and nothing has changed by then.
    local q, f, format = base .. ':q', base .. ':f', string.format
    local id = redis.pcall('ZRANGE', q, '0', '0')[1]
    local entry, last = id and redis.pcall('HGET', c, id), redis.pcall('GET', f)
    if type(entry) == 'string' and type(last) == 'string' and redis.call('EXISTS', base .. ':s') == 0 then
      local time = redis.call('TIME')
      local now_us = time[1] * 1000000 + time[2]
      local now = (now_us - now_us % 1000) / 1000
      local expires, ttl, channel, label, reason =
        string.match(entry, '^w\n(%d+)\n%d+\n(%d+)\nx\n%d+\n%d+\n([^\n]+)\n([^\n]*)\n([^\n]*)$')
      local number = string.match(last, '^(%d+)\n1\n')
      if expires and number and tonumber(expires) >= now then
        local token = math.max(number + 1, now_us, ARGV[3] + 1)
        ttl = math.min(tonumber(ttl), @FIRST_TTL_MS@)
        local push = format('G\n%s\n%d\n%d\n%d\n%s\n%s\n%s', id, token, ttl, now_us, ARGV[1], label, main)
        local heard = redis.pcall('PUBLISH', channel, push)
        if type(heard) == 'number' and heard > 0 then
          local fence = format('%d\n1\n%s\nx\n%d\n%s\n%s', token, id, now, channel, reason)
          local kept = now + @FENCE_MS@ + math.max(0, math.ceil((token - now_us) / 1000))
          redis.call('ZREM', q, id)
          redis.call('HDEL', c, id)
          redis.call('SET', f, fence, 'PXAT', format('%d', kept))
          redis.call('SET', main, label .. '#' .. id, 'PXAT', format('%d', now + ttl))
          return {now_us, 'H'}
        end
      end
    end
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
