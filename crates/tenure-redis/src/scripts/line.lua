-- The line of one lock: what attempt, renew, release, settle and evict have in common. Included, never run alone.
--
-- Expects `now_us` and `now` (ms) to be read from TIME, and `run_id`, `floor` and `fence` to be set. The keys of a lock
-- are its main key, and its base with these after it:
--
-- main  of the one holder that holds alone, one field a line: label#id, mode, since (ms), token, channel, reason; if it
--       was evicted, '!' and what was said, and MARK before all of it. After the mode stands '-' as long as there is
--       certainly no :c and no :t, '+' as long as there is no :t, otherwise '*'; after '+' and '*' a number: if it is that
--       of the present while (@LATE_US@ µs), somebody has seen to it that :q and :c live on. Expires with the grant.
--       Of a client that is not tenure, or that may run no scripts: whatever it wrote.
-- :c    hash by id of those in :s and :q, one field a line: kind, expires (ms), number, time, mode, n, of, channel,
--       label, reason; if it was evicted, '!' and what was said. Kind w waits: number is when it
--       joined (µs), time its ttl. Kind k:
--       the same, passed over because nobody listened, not in :q. Kind h holds: number is its token, time since when
--       (ms); it expires as :s says.
-- :t    hash by id of ended claims: until (ms); if it was evicted, a line break and what the operator said
-- :s    sorted set of the ids of all other holders, by the moment (ms) they expire
-- :q    list of the waiting ids, first come first
-- :d    id of the claim that settled, a line break, the outcome. Expires with it.
-- :f    only where the main key is not the base: there was a grant. Keeps a lock that somebody else names in the list.
--
-- The fence is one key for all locks: a sorted set of one member, named after this layout, with the last token as its
-- score, so that one ZADD GT both raises it to the clock and tells whether it was below.
--
-- Where neither main nor :c nor :t is, there is nothing that an attempt must heed but :d. What expires at ms x is alive at x and dead at x + 1, as
-- Redis' own keys are.

-- No label contains a line break.
local MARK = 'evicted\n'

local main, c, t, s, q, d, f
local held, waiting, taken
-- Channels that nobody listens to, found out in this run.
local deaf = {}

local function begin(main_key, base)
  main, c, t, s, q, d = main_key, base .. ':c', base .. ':t', base .. ':s', base .. ':q', base .. ':d'
  f = main_key ~= base and base .. ':f'
  held, waiting, taken = false, 0, nil
end

-- A whole number as text. Redis would write it as a fraction first, which takes longer than most commands.
local function whole(number)
  return string.format('%d', number)
end

-- Calls `command` on `key` with many members, a few at a time: Lua's stack is small.
local function on_many(command, key, members)
  for i = 1, #members, 1000 do
    redis.call(command, key, unpack(members, i, math.min(i + 999, #members)))
  end
end

-- What the operator said, if the rest of an entry tells of an eviction.
local function said_in(rest)
  return string.sub(rest, 1, 2) == '\n!' and string.sub(rest, 3) or nil
end

-- Tells a process something; answers how many listened. Whatever goes wrong with that is no reason to stop half-way.
local function publish(channel, push)
  if channel == '' then
    return 0
  end
  local heard = redis.pcall('PUBLISH', channel, push)
  return type(heard) == 'number' and heard or 0
end

local function claim_of(id)
  local entry = redis.call('HGET', c, id)
  if not entry then
    return nil
  end
  local kind, expires, number, time, mode, n, of, channel, label, reason, said =
    string.match(entry, '^(%a)\n(%d+)\n(%d+)\n(%d+)\n(%a)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n([^\n]*)(.*)$')
  if kind == 'h' then
    expires = redis.call('ZSCORE', s, id)
  end
  expires = tonumber(expires)
  if not expires or expires < now then
    return nil
  end
  return {
    kind = kind, expires = expires, number = tonumber(number), time = tonumber(time), mode = mode, n = tonumber(n),
    of = tonumber(of), channel = channel, label = label, reason = reason, said = said_in(said)
  }
end

local function write_claim(id, claim)
  redis.call('HSET', c, id, string.format('%s\n%d\n%d\n%d\n%s\n%d\n%d\n%s\n%s\n%s%s', claim.kind,
    claim.expires, claim.number, claim.time, claim.mode, claim.n, claim.of, claim.channel, claim.label, claim.reason,
    claim.said and '\n!' .. claim.said or ''))
end

-- Lets `key` live until `at` (ms) at least; never shortens.
local function extend(key, at)
  if redis.call('PTTL', key) < at - now then
    redis.call('PEXPIREAT', key, whole(at))
  end
end

-- The fence outlives every grant it numbered by a day, whatever the ttl and however often renewed.
local function extend_fence()
  if redis.call('PTTL', fence) < @FENCE_MIN_MS@ then
    redis.call('PEXPIREAT', fence, whole(now + @FENCE_MS@))
  end
end

-- A token above all others, the clock, and whatever the client has seen.
local function next_token()
  local token = math.max(now_us, floor + 1)
  if redis.call('ZADD', fence, 'GT', 'CH', whole(token), '@LAYOUT@') == 0 then
    token = tonumber(redis.call('ZINCRBY', fence, '1', '@LAYOUT@'))
  end
  extend_fence()
  return token
end

-- Takes apart what the main key holds.
local function holder_in(text)
  local marked = string.sub(text, 1, #MARK) == MARK
  local own = marked and string.sub(text, #MARK + 1) or text
  local value, mode, since, token, channel, reason, rest =
    string.match(own, '^([^\n]*)\n(%a)[-+*]%d*\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)(.*)$')
  return {
    value = value or own, id = string.sub(value or own, -32), mode = mode, since = tonumber(since),
    token = tonumber(token or 0), channel = channel or '', reason = reason or '', said = rest and said_in(rest),
    marked = marked, text = text
  }
end

-- Writes who holds alone. Lives until `expires`, or as long as what it replaces.
local function hold(value, mode, since, token, channel, reason, expires)
  local text = string.format('%s\n%s*0\n%d\n%d\n%s\n%s', value, mode, since, token, channel, reason)
  if expires then
    redis.call('SET', main, text, 'PXAT', whole(expires))
  else
    redis.call('SET', main, text, 'KEEPTTL')
  end
  if f then
    redis.call('SET', f, whole(token), 'PX', '@FENCE_MS@')
  end
  held = holder_in(text)
end

-- There is a :c now, or a :t too: whoever holds alone must look when it ends, and who joins must before.
local function note(is_grave)
  local after = held and held.mode and not held.marked and #held.value + 3
  local flag = after and string.sub(held.text, after, after)
  if flag == '-' or flag == '+' and is_grave then
    held.text = string.sub(held.text, 1, after - 1) .. '*0' .. string.match(held.text, '^.%d*(.*)$', after)
    redis.call('SET', main, held.text, 'KEEPTTL')
  end
end

-- Makes `claim`, which is not in :q any more, a holder.
local function grant(id, claim, ttl, token)
  redis.call('HDEL', c, id)
  local expires = now + ttl
  if claim.mode == 'x' or claim.mode == 'o' then
    hold(claim.label .. '#' .. id, claim.mode, now, token, claim.channel, claim.reason, expires)
  else
    write_claim(id, {
      kind = 'h', expires = expires, number = token, time = now, mode = claim.mode, n = claim.n, of = claim.of,
      channel = claim.channel, label = claim.label, reason = claim.reason
    })
    redis.call('ZADD', s, whole(expires), id)
    extend(s, expires)
    extend(c, expires)
    taken = taken and taken + claim.n
  end
  return token
end

-- Re-arms a holder that does not hold alone.
local function prolong(id, claim, ttl)
  if now + ttl > claim.expires then
    redis.call('ZADD', s, whole(now + ttl), id)
    extend(s, now + ttl)
    extend(c, now + ttl)
  end
  extend_fence()
end

-- Whether a claim fits beside the holders. In :s stand claims of one shape only: see live_shape.
local function has_room(mode, n, of)
  if held then
    return false
  end
  if mode == 's' then
    return true
  end
  if mode ~= 'p' then
    return redis.call('ZCARD', s) == 0
  end
  if not taken then
    taken = 0
    for _, id in ipairs(redis.call('ZRANGE', s, '0', '-1')) do
      taken = taken + (claim_of(id) or {n = 1}).n
    end
  end
  return taken + n <= of
end

-- The first that waits and has not given up.
local function head()
  while true do
    local id = redis.call('LINDEX', q, '0')
    if not id then
      return nil
    end
    local claim = claim_of(id)
    if claim and claim.kind == 'w' then
      return id, claim
    end
    redis.call('LPOP', q)
    redis.call('HDEL', c, id)
  end
end

-- Grants the head of the line while it fits beside the holders. The claim that asks gets its whole ttl, and its token
-- is returned. Any other may be dead: it gets a short ttl and a push; if nobody listens it is passed over for now,
-- and keeps its place for a while should it ask again.
local function serve(asking, whole_ttl)
  local asked
  while not held do
    local id, claim = head()
    if not id or not has_room(claim.mode, claim.n, claim.of) then
      break
    end
    -- Removes first, so that a full store cannot stop it half-way.
    redis.call('LPOP', q)
    local token = next_token()
    if id == asking then
      asked = grant(id, claim, whole_ttl, token)
    else
      local ttl = math.min(claim.time, @FIRST_TTL_MS@)
      local push = string.format('G\n%s\n%d\n%d\n%d\n%s\n%s\n%s', id, token, ttl, now_us, run_id, claim.label, main)
      if not deaf[claim.channel] and publish(claim.channel, push) > 0 then
        grant(id, claim, ttl, token)
      else
        deaf[claim.channel] = true
        claim.kind, claim.expires = 'k', math.min(claim.expires, now + @SKIP_MS@)
        write_claim(id, claim)
      end
    end
  end
  return asked
end

-- Removes a waiting claim.
local function forget(id)
  redis.call('LREM', q, '1', id)
  redis.call('HDEL', c, id)
end

-- Removes the waiting claims that have given up, in the line or passed over. Answers how many wait.
local function sweep()
  local gone, left = {}, {}
  for _, id in ipairs(redis.call('HKEYS', c)) do
    if not claim_of(id) then
      gone[#gone + 1] = id
      gone[id] = true
    end
  end
  if #gone > 0 then
    for _, id in ipairs(redis.call('LRANGE', q, '0', '-1')) do
      if not gone[id] then
        left[#left + 1] = id
      end
    end
    local till = redis.call('PTTL', q)
    redis.call('DEL', q)
    on_many('HDEL', c, gone)
    on_many('RPUSH', q, left)
    if till > 0 then
      redis.call('PEXPIREAT', q, whole(now + till))
    end
  end
  return redis.call('LLEN', q)
end

-- Looks who holds the lock alone and how many wait; forgets the other holders that have expired. Reads before anything
-- is written: a key of a foreign type is found out while nothing has changed.
local function look()
  local text = redis.call('GET', main)
  held = text and holder_in(text)
  waiting = redis.call('LLEN', q)
  redis.call('ZSCORE', fence, '@LAYOUT@')
  if not held then
    local gone = redis.call('ZRANGEBYSCORE', s, '-inf', '(' .. now)
    if #gone > 0 then
      on_many('ZREM', s, gone)
      on_many('HDEL', c, gone)
    end
  end
end

-- The tombstone of an ended claim, and what the operator said.
local function grave(id)
  local stone = redis.call('HGET', t, id)
  if not stone then
    return false
  end
  local till, said = string.match(stone, '^(%d+)\n?(.*)$')
  if tonumber(till) < now then
    redis.call('HDEL', t, id)
    return false
  end
  return true, string.find(stone, '\n', 1, true) and said or nil
end

-- Remembers that a claim has ended: whatever of it still arrives does nothing. What an operator said first stays said.
local function bury(id, till, said)
  local _, before = grave(id)
  said = before or said
  if redis.call('HLEN', t) >= 64 then
    for _, other in ipairs(redis.call('HKEYS', t)) do
      grave(other)
    end
  end
  redis.call('HSET', t, id, string.format('%d', till) .. (said and '\n' .. said or ''))
  extend(t, till)
  note(true)
end

-- What an error was, as text.
local function failure(problem)
  if type(problem) == 'table' then
    problem = problem.err
  end
  return {'E', tostring(problem)}
end
