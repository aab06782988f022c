-- Tells the store that a lock went from hand to hand within a process.
--
-- KEYS  the fence; then the main key, in a cluster every other key of the lock, and last the base of these keys, if the main
--       key alone does not say it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       how many of those in line to name; of the one that holds now its token and its value (label#id);
--       then the ids of those that held, in order: the first as far as the store was told, the last holds now
-- Reply {store µs, until, answer}, or {store µs, until, 'L'} if the request came too late
--       answer: {ttl in ms, token of the first in line, its id, that of the second...} · 0 lost · {'E', error}
--
-- Whoever holds alone may hand its lock on to whom it likes: nobody else gets it before it ends. Those that have had their
-- turn leave the line. If none of them holds as far as the store knows, the lock is lost. The tokens from the first in line
-- on are set aside: nobody else gets them. None are while tokens are ahead of the clock: after a flush they go by the clock.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local fence, run_id, floor = KEYS[1], ARGV[1], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, ARGV[4], 'L'}
end

-- @include line.lua

-- Removes those that have had their turn: nearly always they are the first, in this order.
local function leave(ids)
  if #ids == 0 then
    return
  end
  local first, in_order = redis.call('LRANGE', q, '0', whole(#ids - 1)), true
  for i, id in ipairs(ids) do
    in_order = in_order and first[i] == id
  end
  if in_order then
    redis.call('LPOP', q, whole(#ids))
  else
    for _, id in ipairs(ids) do
      redis.call('LREM', q, '1', id)
    end
  end
  redis.call('HDEL', c, unpack(ids))
end

local function hand_on(wants, token, value)
  local last = string.sub(value, -32)
  look()
  local after, had = {}, false
  for i = 8, #ARGV do
    if i > 8 then
      after[#after + 1] = ARGV[i]
    end
    if held and held.mode == 'x' and held.id == ARGV[i] then
      had, after = true, {}
    end
  end
  local heir = claim_of(last)
  leave(after)
  if not had then
    serve()
    return 0
  end
  local ttl = heir and math.min(heir.time, @FIRST_TTL_MS@) or @FIRST_TTL_MS@
  if held.id == last then
    extend(main, now + ttl)
  else
    local beside = not held.marked and string.match(held.text, '^\nx([+*]%d+)\n', #held.value + 1) or '*0'
    local text = string.format('%s\nx%s\n%d\n%d\n%s\n%s', value, beside, now, token, ARGV[2], heir and heir.reason or '')
    -- Never less than was left: who holds now may believe in that. Mostly it is more, and nobody need look.
    local lasts = ttl < @FIRST_TTL_MS@ and math.max(ttl, math.min(redis.call('PTTL', main), @FIRST_TTL_MS@)) or ttl
    redis.call('SET', main, text, 'PXAT', whole(now + lasts))
  end
  local heirs = wants > 0 and token <= now_us + @AHEAD_US@ and redis.call('LRANGE', q, '0', whole(wants - 1)) or {}
  local number = 0
  if #heirs > 0 then
    number = next_token()
    redis.call('ZINCRBY', fence, whole(#heirs - 1), '@LAYOUT@')
  end
  return {ttl, number, unpack(heirs)}
end

begin(KEYS[2], KEYS[#KEYS])
local ok, answer = pcall(hand_on, tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7])
return {now_us, ARGV[4], ok and answer or failure(answer)}
