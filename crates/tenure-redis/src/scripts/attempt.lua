-- One step of claims towards holding their locks.
--
-- KEYS  the fence; then per claim its main key, and where that is not also the base of the other keys, the base after it
-- ARGV  highest token seen, with + before it now and then: let the fence live on; until (store µs);
--       mode, a line break, run id of the server; ttl in ms; channel of this process, a line break, reason;
--       then of each claim its value (label#id)
--       mode: x exclusive, s shared, p:N:OF permits, o once; in capitals: pass by, never stay in line;
--       with =ID at its end: take over the grant of that claim, or nothing
-- Reply {store µs, until, answer...}, or {store µs, until, 'L'} for all of them if the request came too late; of a single
--       claim that is granted with the store's µs as its token, only until, a space, and that number
--       answer: token of a grant with the whole ttl · {'S', outcome} · {'R', kind, text} · {'E', error}
--       · {'B', ahead or -1, look again in ms, and of a holder: value, expires in ms, token, mode, held for ms, reason}
--
-- A free lock that nobody waits for, and that no ended claim haunts, is granted at once. Otherwise: a claim that was
-- ended is refused; one that holds is re-armed; one that finds the thing done is told the result. Any other takes its
-- place in the line, and the line is served: the claim that asks gets its grant in the reply, the others by push.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
local fence, floor, ttl = KEYS[1], tonumber(ARGV[1]), ARGV[4]
if now_us > tonumber(ARGV[2]) then
  return {now_us, ARGV[2], 'L'}
end
local count = #ARGV - 5
local stride = (#KEYS - 1) / count
local replies, slow, from = {now_us, ARGV[2]}, nil, 1
local sub, match, format, call, pcall_ = string.sub, string.match, string.format, redis.call, redis.pcall

-- The usual cases, written out: a free lock, and a place in the line behind one that holds alone. Whatever is not so
-- is left to the general way below, and nothing has changed by then. First, how many of the keys are there in all: main,
-- :c and :t of each.
local there
if stride > 1 then
  slow = {}
  for i = 1, count do
    slow[i] = i
  end
  from = count + 1
elseif count == 1 then
  there = call('EXISTS', KEYS[2], KEYS[2] .. ':c', KEYS[2] .. ':t')
else
  local looked_at = {}
  for i = 1, count do
    local main = KEYS[i + 1]
    looked_at[3 * i - 2], looked_at[3 * i - 1], looked_at[3 * i] = main, main .. ':c', main .. ':t'
  end
  there = call('EXISTS', unpack(looked_at))
end
local how = sub(ARGV[3], 1, 2)
local stays_in_line, passes_by = how == 'x\n', how == 'X\n'
-- One token for all that are granted at once, each of them another lock; and what stands after the value.
local token, number, after
for i = from, count do
  local main, value = KEYS[i + 1], ARGV[i + 5]
  local answer, keys
  if stays_in_line or passes_by then
    keys = (count == 1 or there == 0) and there or call('EXISTS', main, main .. ':c', main .. ':t')
  end
  if keys == 0 then
    if not token then
      token = now_us > floor and now_us or floor + 1
      number = format('%d', token)
      local is_higher = pcall_('ZADD', fence, 'GT', 'CH', number, '@LAYOUT@')
      if type(is_higher) == 'table' then
        token, answer = nil, {'E', is_higher.err}
      else
        if is_higher == 0 then
          number = call('ZINCRBY', fence, '1', '@LAYOUT@')
          token = tonumber(number)
        end
        after = format('\nx-\n%d\n', now) .. number .. '\n' .. ARGV[5]
      end
    end
    -- With GET, for what it answers then is cheaper to take in than OK.
    local before = token and call('SET', main, value .. after, 'GET', 'PX', ttl)
    if before == false then
      answer = token
    elseif before then
      -- Two of them wanted the same lock. The first has it.
      call('SET', main, before, 'PX', ttl)
    end
  elseif stays_in_line and keys < 3 and now_us % 64 > 0 then
    local c, q, text = main .. ':c', main .. ':q', pcall_('GET', main)
    local channel, reason = match(ARGV[5], '^([^\n]+)\n([^\n]*)$')
    local holder, flag, since, its_number, why
    if type(text) == 'string' then
      holder, flag, since, its_number, why =
        match(text, '^([^\n]*)\nx([-+])\n(%d+)\n(%d+)\n[^\n]*\n([^\n]*)$')
    end
    if holder and holder ~= value and channel then
      local last = pcall_('ZRANGE', q, '-1', '-1', 'WITHSCORES')
      local waiting = last.err and @WAITERS_MAX@ or last[1] and call('ZCARD', q) or 0
      -- The second key is that of those who wait. If none does, it may be that of ended claims.
      if waiting < @WAITERS_MAX@ and (waiting > 0 or keys == 1) then
        local place, is_first = now_us, true
        if last[2] then
          local before = tonumber(last[2])
          if before >= place then
            -- The clock went back, or two came at once: behind the last all the same.
            place = before + 1
          end
          is_first = (before - before % @LATE_US@) ~= (now_us - now_us % @LATE_US@)
        end
        local place_number, id = format('%d', place), sub(value, -32)
        -- Not if it is known: it has its place, or had.
        if pcall_('HSETNX', c, id, format('w\n%d\n%s\n%s\nx\n1\n0\n%s\n%s\n%s', now + @LINE_TTL_MS@,
          place_number, ttl, channel, sub(value, 1, -34), reason)) == 1 then
          call('ZADD', q, place_number, id)
          if flag == '-' then
            call('SET', main, holder .. '\nx+' .. sub(text, #holder + 4), 'KEEPTTL')
          end
          -- Longer than needed, so that only the first of a while need see to it.
          if is_first then
            local till = format('%d', now + 2 * @LINE_TTL_MS@)
            call('PEXPIREAT', q, till)
            if call('PTTL', c) < 2 * @LINE_TTL_MS@ then
              call('PEXPIREAT', c, till)
            end
          end
          local left, look = call('PTTL', main), math.floor(@LINE_TTL_MS@ / 3)
          if left >= 0 and waiting < 3 and left + 2 + 50 * waiting < look then
            look = left + 2 + 50 * waiting
          end
          answer = {'B', waiting, look, holder, left, tonumber(its_number), 'x', now - since, why}
        end
      end
    end
  end
  if answer then
    replies[i + 2] = answer
  else
    slow = slow or {}
    slow[#slow + 1] = i
  end
end
-- Whatever became of the attempt: another of the same client may have made the fence before it came here.
if string.byte(ARGV[1]) == 43 then
  call('PEXPIREAT', fence, format('%d', now + @FENCE_MS@))
end
if not slow then
  if count == 1 and token == now_us then
    return ARGV[2] .. ' ' .. number
  end
  return replies
end

local mode, run_id = match(ARGV[3], '^([^\n]*)\n(.*)$')
local channel, reason = match(ARGV[5], '^([^\n]*)\n(.*)$')

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
    return shape_of(held.mode or 'x')
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
    busy[4], busy[5] = (held.marked and MARK or '') .. held.value, left
    busy[6], busy[7], busy[8], busy[9] = held.token, held.mode or '', held.since and now - held.since or -1, held.reason
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
  local known = claim_of(before)
  local token
  if held and held.id == before and held.mode == kind and not held.marked then
    token = held.token > 0 and held.token or next_token()
    forget(id)
    hold(value, kind, held.since, token, channel, reason, now + math.max(ttl, redis.call('PTTL', main)))
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
  if held and held.value == value then
    if held.marked then
      return {'R', 'ended', ''}
    end
    extend(main, now + ttl)
    if held.token > 0 then
      extend_fence()
      return held.token
    end
    -- It was taken without a script, which notes no token: number the grant anew.
    local token = next_token()
    hold(value, kind, held.since or now, token, channel, reason)
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
      if now_us % 64 == 0 and redis.call('HLEN', c) > 2 * (waiting + redis.call('ZCARD', s)) + 64 then
        sweep()
      end
      place = next_place()
    end
    write_claim(id, {
      kind = 'w', expires = now + @LINE_TTL_MS@, number = place, time = ttl, mode = kind, n = n, of = of,
      channel = channel, label = label, reason = reason
    })
    redis.call('ZADD', q, whole(place), id)
    note_line()
    -- Longer than needed, so that it is not needed every time.
    if redis.call('PTTL', q) < 2 * @LINE_TTL_MS@ - @LATE_US@ / 1000 then
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
  begin(KEYS[stride * (i - 1) + 2], KEYS[stride * i + 1])
  local ok, answer = pcall(attempt, ARGV[i + 5], mode, ttl, reason)
  replies[i + 2] = ok and answer or failure(answer)
end
return replies
