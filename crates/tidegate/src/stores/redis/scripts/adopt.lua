-- Converts a state found under other parameters to these: units used are preserved, rounded up.
-- The same as core/src/algorithms/convert.rs.

-- ceil(a * b / c) for a < c, all below 2^53 though the product is not: long division, bit by bit.
local function scaled(a, b, c)
  local quotient, rest = 0, 0
  local bit = 2 ^ 52
  while bit >= 1 do
    quotient = quotient * 2
    if rest >= c - rest then
      quotient = quotient + 1
      rest = rest - (c - rest)
    else
      rest = rest * 2
    end
    if b >= bit then
      b = b - bit
      if rest >= c - a then
        quotient = quotient + 1
        rest = rest - (c - a)
      else
        rest = rest + a
      end
    end
    bit = bit / 2
  end
  return rest > 0 and quotient + 1 or quotient
end

-- A state in which `units` were just charged, at `now` in microseconds.
local function with_used(limit, units, now)
  local tick = math.floor(now / limit.unit)
  local state = fresh(limit, now)
  if limit.kind == 'bucket' then
    tick = math.ceil(now / limit.unit)
    state[1] = tick
  elseif limit.kind == 'log' then
    tick = math.ceil(now / limit.unit)
  end
  if limit.kind == 'fixed' or limit.kind == 'calendar' then
    state[2] = add(limit, 0, units)
  else
    spend(limit, state, tick, units)
  end
  return state
end

-- Converts `state`, made under `old`, to `limit`. Returns it, and whether it had to be set back in time.
local function adopt(limit, old, state, now)
  local effective, stepped = advance(old, state, now)
  local seen = math.max(effective * old.unit, now)
  local kind = limit.kind
  local windows = (kind == 'fixed' or kind == 'calendar') and (old.kind == 'fixed' or old.kind == 'calendar')
  if kind ~= old.kind and not windows then
    return with_used(limit, used(old, state, effective), seen), stepped
  end
  local tick = math.floor(seen / limit.unit)
  local function last(there)
    return math.ceil((there + 1) * old.unit / limit.unit) - 1
  end
  if kind == 'bucket' then
    local max_level = 2 * limit.limit * limit.per_token
    local whole = math.floor(state[2] / old.per_token)
    local level = whole * limit.per_token
    if level < max_level then
      level = level + scaled(state[2] - whole * old.per_token, limit.per_token, old.per_token)
    end
    return { math.ceil(seen / limit.unit), math.min(level, max_level) }, stepped
  elseif kind == 'sliding' then
    local began = math.ceil(state[1] * old.width * old.unit / limit.unit)
    local index = math.floor(tick / limit.width)
    local start = index * limit.width
    local current, previous = add(limit, 0, state[2]), 0
    if began > start then
      current = add(limit, current, state[3])
    elseif began + limit.width > start then
      previous = add(limit, 0, state[3])
    end
    return { index, current, previous }, stepped
  elseif kind == 'strict' then
    local new = fresh(limit, seen)
    for age = 0, 10 do
      local stop = (math.max(state[1] - age, 0) + 1) * old.width
      local to = math.max(new[1] - math.floor(last(stop - 1) / limit.width), 0)
      if to <= 10 then
        new[2 + to] = add(limit, new[2 + to], state[2 + age])
      end
    end
    clamp_debt(limit, new)
    return new, stepped
  elseif kind == 'log' then
    local new = { 0, '' }
    for at = 1, #state[2], ENTRY do
      local stamp, units = struct.unpack('<I7I4', state[2], at)
      push(new, stamp_of(limit, math.min(last(stamp), tick)), units)
    end
    clamp_debt(limit, new)
    return new, stepped
  end
  local new = { end_of(limit, tick), add(limit, 0, state[2]), 0 }
  if guarded(limit, new[1], tick) then
    local known = limit.guard * limit.unit <= old.guard * old.unit
      and math.ceil(state[1] * old.unit / limit.unit) == new[1]
    new[3] = add(limit, 0, known and state[3] or state[2])
  end
  return new, stepped
end
