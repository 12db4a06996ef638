-- Accounts: copies of the counters that a call touches. They are opened, changed, and written once the verdict on the
-- whole call is known. A counter that is named twice has one account.
--
-- A plan is one byte (see charge.lua) and PLANNED bytes per charge: key (1-based) 1, role 1 (0 enforce, 1 shadow,
-- 2 quota), shape 1 (the kind times 8 plus the width of its counts; 1 for a bucket), then doubles: the cost, the
-- ceiling of this charge, five more, and the whole limit. The five:
--
--   bucket    the cost and the room in the bucket's units, per_tick, microseconds per tick, the max delay of a queue
--             or -1
--   calendar  five edges, now lying between the second and the fourth
--   others    width, phase, 0, microseconds per tick, 0

local PLANNED = 67
-- The latest expiry of a record, in seconds.
local LATEST = 9007199254740

-- The charges of a plan. Each takes the next header of its key from `heads`. Returns nil if the edges of a calendar are
-- not those around now: then nothing may be done, and the script replies with the time only.
local function read_plan(plan, heads, now)
  local charges, at = {}, {}
  for from = 2, #plan, PLANNED do
    local key, role, _, cost, ceiling, a, b, c, d, e, whole = struct.unpack('<BBBdddddddd', plan, from)
    local limit
    limit, at[key] = read_header(heads[key], at[key] or 2)
    limit.limit = whole
    limit.ceiling = ceiling
    limit.delay = e
    if limit.kind == 'calendar' then
      local tick = math.floor(now / limit.unit)
      if tick < b or tick >= d then
        return nil
      end
      limit.edges = { a, b, c, d, e }
    end
    charges[#charges + 1] = { key = key, role = role, cost = cost, limit = limit }
  end
  return charges
end

-- The counters of a record. A record that begins with `head` has exactly the limits of the charges, which need not be
-- read again.
local function open_record(bytes, head, key, charges)
  if not bytes or string.sub(bytes, 1, #head) ~= head then
    return read_record(bytes)
  end
  local counters, at = {}, #head + 1
  for _, charge in ipairs(charges) do
    if charge.key == key then
      local state
      state, at = read_state(bytes, at, charge.limit)
      counters[#counters + 1] = { limit = charge.limit, state = state }
    end
  end
  return counters
end

-- The account of a charge, advanced to now: from its record, or a fresh state.
local function account_of(record, limit, now)
  for _, account in ipairs(record) do
    if account.limit.rate == limit.rate then
      if not account.touched then
        local state, stepped, back = copy(account.state), false, false
        account.was = { account.limit, account.state }
        if account.limit.head ~= limit.head then
          state, stepped = adopt(limit, account.limit, state, now)
        end
        account.tick, back = advance(limit, state, now)
        account.limit, account.state, account.touched = limit, state, true
        account.changed = stepped or back
        account.found = { limit, state, account.changed, account.tick }
      end
      return account
    end
  end
  local account = { limit = limit, state = fresh(limit, now), touched = true, changed = false }
  account.tick = math.floor(now / limit.unit)
  account.found = { limit, account.state, false, account.tick }
  local at = #record + 1
  while at > 1 and record[at - 1].limit.rate > limit.rate do
    at = at - 1
  end
  table.insert(record, at, account)
  return account
end

-- A copy of an account's state under a limit, and its tick.
local function under(account, limit, now)
  local state = copy(account.state)
  if account.limit.head == limit.head then
    return state, account.tick
  end
  state = adopt(limit, account.limit, state, now)
  local tick = advance(limit, state, now)
  return state, tick
end

local function take(account, limit, state, tick)
  account.limit, account.state, account.tick, account.changed = limit, state, tick, true
end

local function roll_back(account)
  account.limit, account.state, account.changed, account.tick = unpack(account.found)
end

-- The reply of a script: see charge.lua. A table would cost more than a whole short decision, since Redis looks up
-- seven names in it before it reads the values.
local function reply_with(now, verdict, found)
  if not verdict then
    return struct.pack('<I7', now) .. ARGV[#ARGV]
  end
  local reply = struct.pack('<I7d', now, verdict)
  for i = 1, #found do
    local record = found[i] or ''
    reply = reply .. struct.pack('<I4', #record) .. record
  end
  return reply .. ARGV[#ARGV]
end

local function record_bytes(counters)
  local heads, states = '\1', ''
  for i, counter in ipairs(counters) do
    local head = counter.limit.head
    if i < #counters then
      head = string.char(string.byte(head), string.byte(head, 2) + 16) .. string.sub(head, 3)
    end
    heads = heads .. head
    states = states .. write_state(counter.limit, counter.state)
  end
  return heads .. states
end

-- Writes a record if anything in it changed. Unchanged counters stay as they are, and are left out once they are as
-- good as fresh. `found` is the previous record, if there was one: then the expiry is only ever moved later (see
-- charge.lua).
local function write_record(key, record, now, found)
  local written, expires, changed = {}, 1, false
  for _, account in ipairs(record) do
    local limit, state, tick = account.limit, account.state, 0
    if account.changed then
      changed = true
      tick = advance(limit, state, now)
    elseif account.touched then
      limit, state = unpack(account.was or {})
    end
    if limit then
      local at = fresh_at(limit, state, tick)
      if account.changed or at * limit.unit > now then
        written[#written + 1] = { limit = limit, state = state }
        expires = math.max(expires, math.ceil(at / (1000000 / limit.unit)))
      end
    end
  end
  if changed and found then
    redis.call('SET', key, record_bytes(written), 'KEEPTTL')
    redis.call('EXPIREAT', key, math.min(expires, LATEST), 'GT')
  elseif changed then
    redis.call('SET', key, record_bytes(written), 'EXAT', math.min(expires, LATEST))
  end
end
