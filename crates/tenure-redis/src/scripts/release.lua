-- Ends claims, held or waiting, and hands their locks over.
--
-- KEYS  the fence; then per claim its main key, in a cluster every other key that it may have, and last the base of these keys,
--       if the main key alone does not say it
-- ARGV  run id of the server, highest token seen, channel of this process, until when (store µs) it surely awaits the
--       answer, and how many of those in line to name, with line breaks in between; trail: c clean, d doubtful, and after it
--       a number that names the request; then of each claim its value (label#id)
-- Reply {store µs or 0, trail and name, answer...}; answer: 'H' held · 'W' waited · 'A' absent · {'E', error}. After the answer to a
--       single claim there may be one push more, for a claim of the process that asks, and the ids of the next in line: the
--       tokens after its own are set aside for them. Or only trail and name, if all of them were held alone and nobody waited
--
-- A claim that holds alone while nobody waits is simply deleted. Otherwise the claim is removed wherever it stands,
-- and the line is served: one command hands the lock over, however many wait. After a doubtful trail a tombstone
-- stays, so that an attempt of this claim that arrives later does nothing. Works in a full store: it removes first.

local count, name, trail, call = #ARGV - 2, ARGV[2], string.sub(ARGV[2], 1, 1), redis.call
local stride = (#KEYS - 1) / count
local slow
local replies = {0, name}
if count == 1 then
  local main, value = KEYS[2], ARGV[3]
  local base, length = KEYS[stride + 1], #ARGV[3]
  local text = redis.pcall('GET', main)
  -- What the main key holds is the claim's: its value, then nothing or a line break.
  if
    type(text) == 'string'
    and string.sub(text, 1, length) == value
    and (string.byte(text, length + 1) or 10) == 10
    and trail == 'c'
  then
    if string.sub(text, length + 2, length + 4) == 'x-\n' then
      call('DEL', main)
      return name
    end
    -- The usual hand-over, written out: from one that held alone to the first in line, which wants the same and listens.
    -- Whatever is not so is left to the general way below, with everything in its place again. Removes first: a full
    -- store lets nobody write before.
    local c, q, format, pcall_ = base .. ':c', base .. ':q', string.format, redis.pcall
    local beside = main == base and string.match(text, '^\nx([+*]%d+)\n', length + 1)
    local id = beside and pcall_('LPOP', q)
    if id == false and call('EXISTS', c) == 0 then
      call('DEL', main)
      return name
    end
    id = type(id) == 'string' and id
    local entry = id and pcall_('HGET', c, id)
    local time = call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    local now = (now_us - now_us % 1000) / 1000
    if type(entry) == 'string' then
      local expires, ttl, channel, label, reason =
        string.match(entry, '^w\n(%d+)\n%d+\n(%d+)\nx\n%d+\n%d+\n([^\n]+)\n([^\n]*)\n([^\n]*)$')
      if expires and tonumber(expires) >= now then
        local run_id, floor, ours, awaits, wants =
          string.match(ARGV[1], '^([^\n]*)\n(%d+)\n([^\n]*)\n(%d+)\n(%d+)$')
        floor = tonumber(floor)
        local number = format('%d', now_us > floor and now_us or floor + 1)
        if call('ZADD', KEYS[1], 'GT', 'CH', number, '@LAYOUT@') == 0 then
          number = call('ZINCRBY', KEYS[1], '1', '@LAYOUT@')
        end
        ttl = tonumber(ttl)
        if ttl > @FIRST_TTL_MS@ then
          ttl = @FIRST_TTL_MS@
        end
        local push = format('G\n%s\n%s\n%d\n%d\n%s\n%s\n%s', id, number, ttl, now_us, run_id, label, main)
        -- Who asks can tell its own: that needs no command, and wakes nobody twice.
        local is_ours = channel == ours and now_us <= tonumber(awaits)
        local heard = is_ours and 1 or pcall_('PUBLISH', channel, push)
        if type(heard) == 'number' and heard > 0 then
          call('HDEL', c, id)
          call('SET', main, format('%s#%s\nx%s\n%d\n%s\n%s\n%s', label, id, beside, now, number, channel, reason), 'PX', ttl)
          if not is_ours then
            return {now_us, name, 'H'}
          end
          -- Not while tokens are ahead of the clock: after a flush they go by the clock.
          local may_name = wants ~= '0' and number - now_us <= @AHEAD_US@
          local heirs = may_name and call('LRANGE', q, '0', wants - 1) or {}
          if heirs[1] then
            call('ZINCRBY', KEYS[1], #heirs, '@LAYOUT@')
          end
          return {now_us, name, 'H', push, unpack(heirs)}
        end
      end
    end
    if id then
      call('LPUSH', q, id)
      -- Both: whoever joins next does not look how long they live.
      local till = format('%d', now + 2 * @LINE_TTL_MS@)
      call('PEXPIREAT', q, till)
      if call('PTTL', c) < 2 * @LINE_TTL_MS@ then
        call('PEXPIREAT', c, till)
      end
    end
  end
  slow = {1}
else
  -- Looked at in one call and deleted in another: a call costs more than a key.
  local sub, byte, mains, freed = string.sub, string.byte, {}, {}
  for i = 1, count do
    mains[i] = KEYS[stride * (i - 1) + 2]
  end
  local known = call('MGET', unpack(mains))
  for i = 1, count do
    local text, value = known[i], ARGV[i + 2]
    local length = #value
    if
      text
      and sub(text, 1, length) == value
      and (byte(text, length + 1) or 10) == 10
      and trail == 'c'
      and (sub(text, length + 2, length + 4) == 'x-\n' or call('EXISTS', KEYS[stride * i + 1] .. ':c') == 0)
    then
      freed[#freed + 1] = mains[i]
      replies[i + 2] = 'H'
    else
      slow = slow or {}
      slow[#slow + 1] = i
    end
  end
  if freed[1] then
    call('DEL', unpack(freed))
  end
end
if not slow then
  return name
end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local fence, run_id, floor = KEYS[1], string.match(ARGV[1], '^([^\n]*)\n(%d+)\n')
floor = tonumber(floor)

-- @include line.lua

local function release(value)
  local id, answer = string.sub(value, -32), 'A'
  look()
  if held and held.value == value then
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
  begin(KEYS[stride * (i - 1) + 2], KEYS[stride * i + 1])
  local ok, answer = pcall(release, ARGV[i + 2])
  replies[i + 2] = ok and answer or failure(answer)
end
return replies
