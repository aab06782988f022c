-- Takes a lock away from its holders.
--
-- KEYS  the fence; then the main key, in a cluster every other key of the lock, and last the base of these keys, if the main
--       key alone does not say it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       token of the one to evict or 0 for all, 1 to pass the lock on at once or 0, reason
-- Reply {store µs, until, how many}, {store µs, until, {'E', error}} or {store µs, until, 'L'} if the request came too late
--
-- An evicted claim is marked and tombstoned with the reason, so that its renewals are refused, and its process is told.
-- The lock passes on when the claim expires, or at once. What was said first stays said. A main key that is not ours and
-- never expires is no lock but somebody's data: an error that starts with NOTTL, and nothing has changed.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local fence, run_id, floor = KEYS[1], ARGV[1], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, ARGV[4], 'L'}
end

-- @include line.lua

local function tell(id, channel, reason)
  bury(id, now + @TOMBSTONE_MS@, reason)
  publish(channel, 'E\n' .. id .. '\n' .. reason)
end

local function evict(token, force, reason)
  local evicted = 0
  look()
  local last = held
  local is_ours = last and (last.mode or string.match(last.value, '#' .. string.rep('%x', 32) .. '$'))
  if last and not is_ours and redis.call('PTTL', main) == -1 then
    error({err = 'NOTTL ' .. main})
  end
  if last and (token == 0 or last.token == token) then
    evicted = 1
    if force then
      redis.call('DEL', main)
      held = false
    elseif not last.marked then
      local said = last.mode and '\n!' .. reason or ''
      redis.call('SET', main, MARK .. last.text .. said, 'KEEPTTL')
      last.marked = true
    end
    if last.mode then
      tell(last.id, last.channel, reason)
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', s, '0', '-1')) do
    local claim = claim_of(id)
    if claim and (token == 0 or claim.number == token) then
      evicted = evicted + 1
      if force then
        redis.call('ZREM', s, id)
        redis.call('HDEL', c, id)
      elseif not claim.said then
        claim.said = reason
        write_claim(id, claim)
      end
      tell(id, claim.channel, reason)
    end
  end
  serve()
  return evicted
end

begin(KEYS[2], KEYS[#KEYS])
local ok, answer = pcall(evict, tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7])
return {now_us, ARGV[4], ok and answer or failure(answer)}
