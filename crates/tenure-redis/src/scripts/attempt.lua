-- One step of claims towards holding their locks.
--
-- KEYS  per claim its main key; where that is not also the base of the other keys, the base after it
-- ARGV  run id of the server, channel of this process, highest token seen, until (store µs);
--       then per claim four: value (label#id), mode, ttl in ms, reason
--       mode: x exclusive, s shared, p:N:OF permits, o once; in capitals: pass by, never stay in line;
--       with =ID at its end: take over the grant of that claim, or nothing
-- Reply {store µs, answer...}, or {store µs, 'L'} for all of them if the request came too late
--       answer: token of a grant with the whole ttl · {'S', outcome} · {'R', kind, text} · {'E', error}
--       · {'B', ahead or -1, look again in ms, and of a holder: value, expires in ms, token, mode, held for ms, reason}
--
-- A free lock that nobody waits for, and that no ended claim haunts, is granted at once. Otherwise: a claim that was
-- ended is refused; one that holds is re-armed; one that finds the thing done is told the result. Any other takes its
-- place in the line, and the line is served: the claim that asks gets its grant in the reply, the others by push.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
local run_id, channel, floor = ARGV[1], ARGV[2], tonumber(ARGV[3])
if now_us > tonumber(ARGV[4]) then
  return {now_us, 'L'}
end
local first_token = now_us > floor and now_us or floor + 1
local stride = #KEYS / ((#ARGV - 4) / 4)
local slow
local replies = {now_us}
-- The same for all of them, unless a fence is ahead of the clock. Written once: to format a number costs as much as to
-- look up a key.
local number = string.format('%d', first_token)
local digits = #number
local after_id = string.format('\nx\n%d\n%s\n', now, channel)
local sub, type, call = string.sub, type, redis.call
for i = 1, (#ARGV - 4) / 4 do
  local a = 4 * i
  local main, base, value, mode = KEYS[stride * (i - 1) + 1], KEYS[stride * i], ARGV[a + 1], ARGV[a + 2]
  if (mode == 'x' or mode == 'X') and call('EXISTS', main, base .. ':c', base .. ':t') == 0 then
    local f, token = base .. ':f', first_token
    local fence = '\n1\n' .. sub(value, -32) .. after_id .. ARGV[a + 4]
    local last = redis.pcall('SET', f, number .. fence, 'GET', 'PX', '@FENCE_MS@')
    local answer
    if type(last) == 'table' then
      answer = {'E', last.err}
    -- Numbers of as many digits compare as texts do.
    elseif last and (sub(last, digits + 1, digits + 3) ~= '\n1\n' or sub(last, 1, digits) >= number) then
      local known, layout = string.match(last, '^(%d+)\n(%d+)')
      known = tonumber(known)
      if layout ~= '1' then
        call('SET', f, last, 'PX', '@FENCE_MS@')
        answer = {'R', 'layout', layout or '?'}
      elseif known >= token then
        token = known + 1
        local ahead = math.ceil((token - now_us) / 1000)
        call('SET', f, string.format('%d', token) .. fence, 'PXAT', now + @FENCE_MS@ + ahead)
      end
    end
    if not answer then
      call('SET', main, value, 'PX', ARGV[a + 3])
      answer = token
    end
    replies[i + 1] = answer
  else
    slow = slow or {}
    slow[#slow + 1] = i
  end
end
if not slow then
  return replies
end

-- @include line.lua

-- What a mode says: how, and how many of how many.
local function terms(mode)
  local kind = string.lower(string.sub(mode, 1, 1))
  local n, of = string.match(mode, ':(%d+):(%d+)')
  return kind, tonumber(n or 1), tonumber(of or 0)
end

local function shape_of(kind, of)
  return kind == 'p' and 'p' .. of or kind == 'o' and 'o' or 'l'
end

-- What the lock is used as by those who hold it or wait for it. Fixed while there are any.
local function live_shape()
  if held then
    local last = fence()
    return shape_of(last.id == string.sub(held, -32) and last.mode or 'x')
  end
  local holder = redis.call('ZRANGE', s, '0', '0')[1]
  if holder then
    local claim = claim_of(holder)
    return claim and shape_of(claim.mode, claim.of)
  end
  local id, claim = head()
  return id and shape_of(claim.mode, claim.of)
end

-- The end of the line: the present moment, later than every place already taken.
local function next_place()
  local last = redis.call('ZRANGE', q, '-1', '-1', 'WITHSCORES')[2]
  return math.max(now_us, tonumber(last or 0) + 1)
end

-- The first few in line look when the first holder's ttl ends, one after the other: should it be dead, one of them
-- serves the line. Everybody looks often enough to keep their place.
local function look_again_after(ahead, left)
  if not held then
    local first = redis.call('ZRANGE', s, '0', '0', 'WITHSCORES')[2]
    left = first and tonumber(first) - now or -1
  end
  if left >= 0 and ahead < 3 then
    return math.min(math.floor(@LINE_TTL_MS@ / 3), left + 2 + 50 * ahead)
  end
  return math.floor(@LINE_TTL_MS@ / 3)
end

-- Adds one holder to a busy answer, if there is any.
local function show_holder(busy, left)
  if held then
    local last = fence()
    local is_ours = last.id == string.sub(held, -32)
    busy[4], busy[5] = held, left
    busy[6], busy[7] = is_ours and last.token or 0, is_ours and last.mode or ''
    busy[8], busy[9] = is_ours and now - last.since or -1, is_ours and last.reason or ''
    return
  end
  local id = redis.call('ZRANGE', s, '0', '0')[1]
  local claim = id and claim_of(id)
  if claim then
    local mode = claim.mode == 'p' and 'p:' .. claim.n .. ':' .. claim.of or claim.mode
    busy[4], busy[5] = (claim.said and MARK or '') .. claim.label .. '#' .. id, claim.expires - now
    busy[6], busy[7], busy[8], busy[9] = claim.number, mode, now - claim.time, claim.reason
  end
end

-- Puts a claim in the place of the one that holds, with its token. That one has ended then.
local function succeed(before, id, value, kind, n, of, ttl, label, reason)
  local last, known = fence(), claim_of(before)
  local token
  if held and string.sub(held, -32) == before and last.id == before and last.mode == kind and not last.said then
    token = last.token
    forget(id)
    held = value
    redis.call('SET', main, value, 'PXAT', whole(now + math.max(ttl, redis.call('PTTL', main))))
    write_fence(token, string.format('\n%s\n%s\n%d\n%s\n%s', id, kind, last.since, channel, reason))
  elseif known and known.kind == 'h' and not known.said and known.mode == kind and known.n == n and known.of == of then
    token = known.number
    redis.call('HDEL', c, before)
    redis.call('ZREM', s, before)
    forget(id)
    known.channel, known.label, known.reason = channel, label, reason
    known.expires = math.max(known.expires, now + ttl)
    write_claim(id, known)
    redis.call('ZADD', s, whole(known.expires), id)
    extend(s, known.expires)
    extend(c, known.expires)
    extend_fence()
  else
    return {'R', 'ended', ''}
  end
  bury(before, now + @TOMBSTONE_MS@)
  serve()
  return token
end

local function attempt(value, mode, ttl, reason)
  local id, label = string.sub(value, -32), string.sub(value, 1, -34)
  local stays = mode == string.lower(mode)
  local kind, n, of = terms(mode)
  local before = string.match(mode, '=(%x+)$')
  ttl = tonumber(ttl)
  look()
  if grave(id) then
    return {'R', 'ended', ''}
  end
  if held == MARK .. value then
    return {'R', 'ended', ''}
  end
  if held == value then
    extend(main, now + ttl)
    extend_fence()
    local last = fence()
    if last.id == id then
      return last.token
    end
    -- The fence key was lost, not the lock: number the grant anew.
    local token = next_token()
    write_fence(token, string.format('\n%s\n%s\n%d\n%s\n%s', id, kind, now, channel, reason))
    return token
  end
  local known = claim_of(id)
  if known and known.said then
    return {'R', 'ended', ''}
  end
  if known and known.kind == 'h' then
    prolong(id, known, ttl)
    serve()
    return known.number
  end
  if before then
    return succeed(before, id, value, kind, n, of, ttl, label, reason)
  end
  if kind == 'o' then
    local record = redis.call('GET', d)
    if record then
      forget(id)
      return {'S', string.sub(record, 34)}
    end
  end
  if kind == 'p' and (n == 0 or n > of) then
    return {'R', 'permits', n .. ' of ' .. of}
  end
  local shape = live_shape()
  if shape and shape ~= shape_of(kind, of) then
    return {'R', 'shape', shape}
  end
  local place = known and known.number
  if stays then
    if not place then
      if waiting >= @WAITERS_MAX@ and sweep() >= @WAITERS_MAX@ then
        return {'R', 'full', '@WAITERS_MAX@'}
      end
      -- Now and then: those that were passed over and never came back.
      if now_us % 16 == 0 and redis.call('HLEN', c) > 2 * (waiting + redis.call('ZCARD', s)) + 64 then
        sweep()
      end
      place = next_place()
    end
    write_claim(id, {
      kind = 'w', expires = now + @LINE_TTL_MS@, number = place, time = ttl, mode = kind, n = n, of = of,
      channel = channel, label = label, reason = reason
    })
    redis.call('ZADD', q, whole(place), id)
    -- Twice as long as needed, so that it is not needed every time.
    if redis.call('PTTL', q) < @LINE_TTL_MS@ then
      redis.call('PEXPIREAT', q, whole(now + 2 * @LINE_TTL_MS@))
      extend(c, now + 2 * @LINE_TTL_MS@)
    end
  elseif known and known.kind == 'k' then
    -- It was passed over while nobody listened: it stands where it stood.
    redis.call('ZADD', q, whole(place), id)
  end
  local token = serve(id, ttl)
  if token then
    return token
  end
  if not stays and not place and not head() and has_room(kind, n, of) then
    -- The line is empty, the lock has room: what was not taken above is shared, or counted.
    return grant(id, {
      time = ttl, mode = kind, n = n, of = of, channel = channel, label = label, reason = reason
    }, ttl, next_token())
  end
  local ahead = waiting
  if known or not held then
    ahead = place and redis.call('ZRANK', q, id) or redis.call('ZCARD', q)
  end
  local left = held and redis.call('PTTL', main)
  local busy = {'B', stays and ahead or -1, look_again_after(ahead, left)}
  show_holder(busy, left)
  if not stays and place then
    forget(id)
    serve()
  end
  return busy
end

for _, i in ipairs(slow) do
  begin(KEYS[stride * (i - 1) + 1], KEYS[stride * i])
  local ok, answer = pcall(attempt, unpack(ARGV, 4 * i + 1, 4 * i + 4))
  replies[i + 1] = ok and answer or failure(answer)
end
return replies
