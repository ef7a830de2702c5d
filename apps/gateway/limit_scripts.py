"""The arithmetic of limits, run inside Redis so that all gateways count together, and at its clock.

A limit by the minute is a bucket (GCRA): only the time at which it is full again is kept. `n` of a limit of `l` move
that time by n/l minutes; it may lie a minute ahead at most, so a bucket that was left alone gives `l` at once. A day's
budget is a count beside the day's number. Calls in flight are members of a sorted set whose scores are the ends of
their leases: what a killed gateway held is free again a minute later.
"""

ADMIT = """
-- KEYS: for each scope its hash and its set of calls in flight
-- ARGV: call, tokens wanted, lease in ms; for each scope: requests/min, tokens/min, in flight, tokens/day (0: no limit)
local MINUTE, DAY, SLACK = 60000, 86400000, 0.5
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local day = math.floor(now / DAY)
local call, wanted, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wait, where, what = -1, 0, 'none'
local tightest = {{0, 0, 0}, {0, 0, 0}}  -- of requests and of tokens: limit, left, ms until all are back
local changes = {}

local function refuse(scope, name, ms)
  if ms > wait then wait, where, what = ms, scope, name end
end

local function note(kind, limit, full_at)
  local left = math.max(0, math.min(limit, math.floor((MINUTE + SLACK - (full_at - now)) * limit / MINUTE)))
  if tightest[kind][1] == 0 or left < tightest[kind][2] then
    tightest[kind] = {limit, left, math.ceil(math.max(0, full_at - now))}
  end
end

local function take(kind, scope, name, limit, kept, n)
  local before = math.max(tonumber(kept or '0'), now)
  local after = before + n * MINUTE / limit
  if after - now > MINUTE + SLACK then
    refuse(scope, name, after - now - MINUTE)
    note(kind, limit, before)
  else
    note(kind, limit, after)
  end
  table.insert(changes[scope], name)
  table.insert(changes[scope], string.format('%.4f', after))
end

for scope = 1, #KEYS / 2 do
  local at = 4 * scope - 1
  local requests, tokens, slots, budget =
    tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local kept = redis.call('HMGET', KEYS[2 * scope - 1], 'requests', 'tokens', 'day', 'spent')
  changes[scope] = {}
  if requests > 0 then take(1, scope, 'requests', requests, kept[1], 1) end
  if tokens > 0 then take(2, scope, 'tokens', tokens, kept[2], math.min(wanted, tokens)) end
  if slots > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[2 * scope], '-inf', now)
    if redis.call('ZCARD', KEYS[2 * scope]) >= slots then refuse(scope, 'in_flight', 1000) end
  end
  if budget > 0 then
    local spent = tonumber(kept[3] or '-1') == day and tonumber(kept[4]) or 0
    if spent >= budget then refuse(scope, 'day', (day + 1) * DAY - now) end
    for _, change in ipairs({'day', day, 'spent', string.format('%.0f', spent + wanted)}) do
      table.insert(changes[scope], change)
    end
  end
end

if wait < 0 then
  for scope = 1, #KEYS / 2 do
    if #changes[scope] > 0 then
      redis.call('HSET', KEYS[2 * scope - 1], unpack(changes[scope]))
      redis.call('EXPIRE', KEYS[2 * scope - 1], 2 * DAY / 1000)
    end
    if tonumber(ARGV[4 * scope + 2]) > 0 then
      redis.call('ZADD', KEYS[2 * scope], now + lease, call)
      redis.call('PEXPIRE', KEYS[2 * scope], lease)
    end
  end
end
local r, t = tightest[1], tightest[2]
return table.concat({where, what, math.ceil(wait), day, r[1], r[2], r[3], t[1], t[2], t[3]}, ' ')
"""

SETTLE = """
-- KEYS as above. ARGV: call, tokens wanted, day of admission, tokens used; for each scope its four limits as they were
local MINUTE = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local call, wanted, day, used = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
for scope = 1, #KEYS / 2 do
  local at = 4 * scope
  local tokens, slots, budget = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local hash = KEYS[2 * scope - 1]
  if tokens > 0 then
    local more = used - math.min(wanted, tokens)
    local full_at = tonumber(redis.call('HGET', hash, 'tokens') or '0')
    if more > 0 then full_at = math.max(full_at, now) end
    redis.call('HSET', hash, 'tokens', string.format('%.4f', full_at + more * MINUTE / tokens))
    redis.call('EXPIRE', hash, 172800)
  end
  if budget > 0 and redis.call('HGET', hash, 'day') == day then
    redis.call('HINCRBY', hash, 'spent', string.format('%.0f', used - wanted))
  end
  if slots > 0 then redis.call('ZREM', KEYS[2 * scope], call) end
end
"""

RENEW = """
-- KEYS: sets of calls in flight. ARGV: call, lease in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, 'XX', now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
end
"""
