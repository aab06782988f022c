-- One step of claims towards holding their locks.
--
-- KEYS  the fence; then per claim its main key, in a cluster every other key that it may have, and last the base of these keys,
--       if the main key alone does not say it
-- ARGV  highest token seen, with + before it now and then: let the fence live on; until (store µs);
--       mode, a line break, run id of the server; ttl in ms; channel of this process, a line break, reason;
--       then of each claim its value (label#id)
--       mode: x exclusive, s shared, p:N:OF permits, o once; in capitals: pass by, never stay in line;
--       with =ID at its end: take over the grant of that claim, or nothing; x with ? after it: it is likely to be
--       held, so that is looked at first
-- Reply {store µs, until, answer...}, or {store µs, until, 'L'} for all of them if the request came too late; of a single
--       claim that is granted with the store's µs as its token, only until, a space, and that number. An error that starts with
--       LAYOUT if another layout of the keys is in use here: nothing has changed
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
local keeps_fence = string.byte(ARGV[1]) == 43
-- Whoever uses another layout must not share locks with us. Looked at now and then: it does not come from one moment to the next.
if keeps_fence then
  local layouts = redis.pcall('ZRANGE', fence, '0', '-1')
  for _, layout in ipairs(layouts) do
    if layout ~= '@LAYOUT@' then
      return redis.error_reply('LAYOUT ' .. layout)
    end
  end
end
local count = #ARGV - 5
local stride = (#KEYS - 1) / count
local is_apart = KEYS[2] ~= KEYS[stride + 1]
local replies, slow, from = {now_us, ARGV[2]}, nil, 1
local sub, match, format, call, pcall_ = string.sub, string.match, string.format, redis.call, redis.pcall

-- The usual cases, written out: a free lock, and a place in the line behind one that holds alone. Whatever is not so
-- is left to the general way below, and nothing has changed by then.
local how = sub(ARGV[3], 1, 2)
local is_likely_busy = how == 'x?'
local stays_in_line, passes_by = is_likely_busy or how == 'x\n', how == 'X\n'
-- How many of the keys are there in all: main, :c and :t of each.
local there
if is_apart or not stays_in_line and not passes_by then
  slow = {}
  for i = 1, count do
    slow[i] = i
  end
  from = count + 1
elseif count > 1 and not is_likely_busy then
  local looked_at = {}
  for i = 1, count do
    local main = KEYS[stride * (i - 1) + 2]
    looked_at[3 * i - 2], looked_at[3 * i - 1], looked_at[3 * i] = main, main .. ':c', main .. ':t'
  end
  there = call('EXISTS', unpack(looked_at))
end
-- One token for all that are granted at once, each of them another lock; and what stands after the value.
local token, number, after
-- Who holds the lock that was last looked at, and in how many ms that ends, if anybody asked.
local known_main, text, left
local channel, reason
for i = from, count do
  local main, value = KEYS[stride * (i - 1) + 2], ARGV[i + 5]
  local answer
  if there ~= 0 and main ~= known_main then
    known_main, text, left = main, is_likely_busy and pcall_('GET', main), nil
  end
  if not text then
    if there == 0 or call('EXISTS', main, main .. ':c', main .. ':t') == 0 then
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
      known_main = nil
    elseif stays_in_line and not is_likely_busy then
      text = pcall_('GET', main)
    end
  end
  if text and stays_in_line and type(text) == 'string' and now_us % 64 > 0 and sub(ARGV[5], 1, 1) ~= '\n' then
    if not channel then
      channel, reason = match(ARGV[5], '^([^\n]*)\n(.*)$')
    end
    local holder, flag, noted, since, its_number, why =
      match(text, '^([^\n]*)\nx([-+*])(%d*)\n(%d+)\n(%d+)\n[^\n]*\n([^\n]*)$')
    local c, q, t, id = main .. ':c', main .. ':q', main .. ':t', sub(value, -32)
    if holder and holder ~= value and (flag ~= '*' or pcall_('HEXISTS', t, id) == 0) then
      local waiting = pcall_('RPUSH', q, id)
      -- Not if it is known: it has its place, or had.
      if type(waiting) == 'number' and (waiting > @WAITERS_MAX@ or pcall_('HSETNX', c, id,
        format('w\n%d\n%d\n%s\nx\n1\n0\n%s\n%s\n%s', now + @LINE_TTL_MS@, now_us + i - 1, ttl, channel,
          sub(value, 1, -34), reason)) ~= 1) then
        call('RPOP', q)
      elseif type(waiting) == 'number' then
        waiting = waiting - 1
        -- Longer than needed, so that only the first of a while need see to it. Nobody else is in :c: the lock is held
        -- by one alone.
        local bucket = (now_us - now_us % @LATE_US@) / @LATE_US@
        local is_due = tonumber(noted) ~= bucket
        if is_due or waiting == 0 then
          local till = format('%d', now + 2 * @LINE_TTL_MS@)
          call('PEXPIREAT', q, till)
          call('PEXPIREAT', c, till)
        end
        if is_due then
          flag = flag == '*' and call('EXISTS', t) == 1 and '*' or '+'
          text = format('%s\nx%s%d', holder, flag, bucket) .. sub(text, #holder + 4 + #noted)
          call('SET', main, text, 'KEEPTTL')
        end
        left = left or call('PTTL', main)
        local look = math.floor(@LINE_TTL_MS@ / 3)
        if left >= 0 and waiting < 3 and left + 2 + 50 * waiting < look then
          look = left + 2 + 50 * waiting
        end
        answer = {'B', waiting, look, holder, left, tonumber(its_number), 'x', now - since, why}
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
if keeps_fence then
  call('PEXPIREAT', fence, format('%d', now + @FENCE_MS@))
end
if not slow then
  if count == 1 and token == now_us then
    return ARGV[2] .. ' ' .. number
  end
  return replies
end

local mode, run_id = match(ARGV[3], '^([^\n?]*)%??\n(.*)$')
channel, reason = match(ARGV[5], '^([^\n]*)\n(.*)$')

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

-- It was passed over while nobody listened: it stands where it stood, behind others that came back before.
local function return_to_line(id, place)
  local i, pivot = 0, redis.call('LINDEX', q, '0')
  while pivot do
    local other = claim_of(pivot)
    if other and other.number > place then
      redis.call('LINSERT', q, 'BEFORE', pivot, id)
      return
    end
    i = i + 1
    pivot = redis.call('LINDEX', q, whole(i))
  end
  redis.call('RPUSH', q, id)
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
  local place, rank = known and known.number, nil
  if stays then
    if not place then
      if waiting >= @WAITERS_MAX@ and sweep() >= @WAITERS_MAX@ then
        return {'R', 'full', '@WAITERS_MAX@'}
      end
      -- Now and then: those that were passed over and never came back.
      if now_us % 64 == 0 and redis.call('HLEN', c) > 2 * (waiting + redis.call('ZCARD', s)) + 64 then
        sweep()
      end
      place = now_us
      -- It may stand there from before it gave up.
      if redis.call('HEXISTS', c, id) == 1 then
        redis.call('LREM', q, '1', id)
      end
      redis.call('RPUSH', q, id)
    else
      rank = redis.call('LPOS', q, id)
      if not rank then
        -- It was passed over, or the line is lost.
        return_to_line(id, place)
      end
    end
    write_claim(id, {
      kind = 'w', expires = now + @LINE_TTL_MS@, number = place, time = ttl, mode = kind, n = n, of = of,
      channel = channel, label = label, reason = reason
    })
    note()
    -- Longer than needed, so that it is not needed every time.
    if redis.call('PTTL', q) < 2 * @LINE_TTL_MS@ - @LATE_US@ / 1000 then
      redis.call('PEXPIREAT', q, whole(now + 2 * @LINE_TTL_MS@))
      extend(c, now + 2 * @LINE_TTL_MS@)
    end
  elseif known and known.kind == 'k' then
    return_to_line(id, place)
  end
  local was_held = held
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
  if was_held and rank then
    ahead = rank
  elseif known or not held then
    ahead = place and redis.call('LPOS', q, id) or redis.call('LLEN', q)
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
