-- The five meters, step for step as the Rust code in crates/core/src/algorithms; three of the seven algorithms share
-- the bucket. Each takes the limit, the state (changed in place) and ticks of that limit. All numbers stay below 2^53:
-- the limit was compiled so, comparisons are written so that no sum exceeds it, and a product that may exceed it is only
-- compared with something smaller.

local FULL = 1000 * ENTRY
local MAX_UNITS = 4294967295
local PATIENCE = 5000000

local function copy(state)
  return { unpack(state) }
end

-- Rounds a stamp up to the grain of a log.
local function stamp_of(limit, tick)
  return math.ceil(tick / limit.grain) * limit.grain
end

local function add(limit, count, units)
  return math.min(count + units, 2 * limit.limit)
end

local function guarded(limit, stop, tick)
  return limit.guard > 0 and stop - tick <= limit.guard
end

-- Appends an entry to a log. A full log merges its oldest entry into the next one.
local function push(state, stamp, units)
  local entries = state[2]
  if entries ~= '' then
    local newest, held = struct.unpack('<I7I4', entries, #entries - ENTRY + 1)
    if newest == stamp then
      local added = math.min(units, MAX_UNITS - held)
      state[1] = state[1] + added
      state[2] = string.sub(entries, 1, -ENTRY - 1) .. struct.pack('<I7I4', stamp, held + added)
      return
    end
  end
  if #entries >= FULL then
    local _, oldest = struct.unpack('<I7I4', entries, 1)
    local next, held = struct.unpack('<I7I4', entries, ENTRY + 1)
    local both = math.min(held + oldest, MAX_UNITS)
    state[1] = state[1] - (held + oldest - both)
    entries = struct.pack('<I7I4', next, both) .. string.sub(entries, 2 * ENTRY + 1)
  end
  state[1] = state[1] + units
  state[2] = entries .. struct.pack('<I7I4', stamp, units)
end

-- The state of a new subject.
local function fresh(limit, now)
  local tick = math.floor(now / limit.unit)
  local kind = limit.kind
  if kind == 'bucket' then
    return { tick, 0 }
  elseif kind == 'log' then
    return { 0, '' }
  elseif kind == 'strict' then
    return { math.floor(tick / limit.width), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  elseif kind == 'sliding' then
    return { math.floor(tick / limit.width), 0, 0 }
  end
  return { end_of(limit, tick), 0, 0 }
end

-- Advances a state to `tick`. Returns its tick then, and whether the state had to be set back.
local function advance_to(limit, state, tick, patience)
  local kind = limit.kind
  if kind == 'bucket' then
    local last = state[1]
    if tick < last then
      if last - tick <= patience then
        return last, false
      end
      state[1] = tick
      return tick, true
    end
    local drained = (tick - last) * limit.per_tick
    state[2] = drained < state[2] and state[2] - drained or 0
    state[1] = tick
    return tick, false
  elseif kind == 'sliding' or kind == 'strict' then
    local index = math.floor(tick / limit.width)
    if index < state[1] then
      local began = state[1] * limit.width
      if began - tick <= patience then
        return began, false
      end
      state[1] = index
      return tick, true
    end
    local counts = #state
    local passed = math.min(index - state[1], counts - 1)
    if passed > 0 then
      for i = counts, 2, -1 do
        state[i] = i - passed >= 2 and state[i - passed] or 0
      end
    end
    state[1] = index
    return tick, false
  elseif kind == 'log' then
    local effective, stepped = tick, false
    if state[2] ~= '' then
      local newest = struct.unpack('<I7', state[2], #state[2] - ENTRY + 1)
      local seen = math.max(newest - (limit.grain - 1), 0)
      if seen > tick and seen - tick <= patience then
        effective = seen
      elseif seen > tick then
        local entries = state[2]
        local back = newest - stamp_of(limit, tick)
        state[1], state[2], stepped = 0, '', true
        for at = 1, #entries, ENTRY do
          local stamp, units = struct.unpack('<I7I4', entries, at)
          push(state, math.max(stamp - back, 0), units)
        end
      end
    end
    local entries, at = state[2], 1
    while at <= #entries do
      local stamp, units = struct.unpack('<I7I4', entries, at)
      if stamp + limit.width > effective then
        break
      end
      state[1] = state[1] - units
      at = at + ENTRY
    end
    state[2] = string.sub(entries, at)
    return effective, stepped
  end
  local start, stop = bounds(limit, tick)
  if state[1] == stop and state[3] == 0 then
    return tick, false
  end
  if state[1] >= stop then
    local reached = bounds(limit, math.max(state[1] - 1, 0))
    if state[3] > 0 then
      reached = math.max(reached, state[1] - limit.guard)
    end
    if reached <= tick then
      return tick, false
    elseif reached - tick <= patience then
      return reached, false
    end
    state[1] = stop
    if not guarded(limit, stop, tick) then
      state[3] = 0
    end
    return tick, true
  end
  state[2] = state[1] == start and state[3] or 0
  state[3] = 0
  state[1] = stop
  return tick, false
end

local function advance(limit, state, now)
  return advance_to(limit, state, math.floor(now / limit.unit), PATIENCE / limit.unit)
end

-- Units in use, rounded up.
local function used(limit, state, tick)
  local kind = limit.kind
  if kind == 'bucket' then
    return math.ceil(state[2] / limit.per_token)
  elseif kind == 'log' then
    return state[1]
  elseif kind == 'sliding' then
    local left = limit.width - (tick - state[1] * limit.width)
    return state[2] + math.ceil(state[3] * left / limit.width)
  elseif kind == 'strict' then
    local sum = 0
    for i = 2, #state do
      sum = sum + state[i]
    end
    return sum
  end
  return state[2]
end

-- Whether the level of a queue exceeds its max delay.
local function is_late(limit, state)
  return limit.delay >= 0 and math.ceil(state[2] / limit.per_tick) > limit.delay
end

local function fits(limit, state, tick, cost)
  if cost > limit.ceiling then
    return false
  elseif limit.kind == 'bucket' then
    return state[2] <= (limit.ceiling - cost) * limit.per_token and not is_late(limit, state)
  elseif limit.kind == 'sliding' then
    local left = limit.width - (tick - state[1] * limit.width)
    return (state[2] + cost) * limit.width + state[3] * left <= limit.ceiling * limit.width
  end
  return used(limit, state, tick) <= limit.ceiling - cost
end

-- The largest cost that fits.
local function remaining(limit, state, tick)
  if limit.kind == 'bucket' then
    if is_late(limit, state) then
      return 0
    end
    return math.floor(math.max(limit.ceiling * limit.per_token - state[2], 0) / limit.per_token)
  end
  return math.max(limit.ceiling - used(limit, state, tick), 0)
end

-- Limits all the counts of a strict window, or a log, to twice the limit. The newest stay.
local function clamp_debt(limit, state)
  local room = 2 * limit.limit
  if limit.kind == 'strict' then
    for i = 2, #state do
      state[i] = math.min(state[i], room)
      room = room - state[i]
    end
    return
  end
  local entries, at = state[2], 1
  while state[1] > room do
    local stamp, units = struct.unpack('<I7I4', entries, at)
    local left = math.max(units - (state[1] - room), 0)
    state[1] = state[1] - (units - left)
    if left > 0 then
      entries = string.sub(entries, 1, at - 1) .. struct.pack('<I7I4', stamp, left) .. string.sub(entries, at + ENTRY)
    else
      at = at + ENTRY
    end
  end
  state[2] = string.sub(entries, at)
end

local function spend(limit, state, tick, units)
  local kind = limit.kind
  if kind == 'bucket' then
    state[2] = math.min(state[2] + units * limit.per_token, 2 * limit.limit * limit.per_token)
  elseif kind == 'log' then
    units = math.min(units, math.max(2 * limit.limit - state[1], 0))
    if units > 0 then
      push(state, stamp_of(limit, tick), units)
    end
  elseif kind == 'strict' then
    local room = math.max(2 * limit.limit - used(limit, state, tick), 0)
    state[2] = state[2] + math.min(units, room)
  else
    state[2] = add(limit, state[2], units)
    if (kind == 'fixed' or kind == 'calendar') and guarded(limit, state[1], tick) then
      state[3] = add(limit, state[3], units)
    end
  end
end

-- The tick from which a state is equivalent to a fresh one.
local function fresh_at(limit, state, tick)
  local kind = limit.kind
  local at = tick
  if kind == 'bucket' then
    at = state[1] + math.ceil(state[2] / limit.per_tick)
  elseif kind == 'log' then
    if state[2] ~= '' then
      at = struct.unpack('<I7', state[2], #state[2] - ENTRY + 1) + limit.width
    end
  elseif kind == 'sliding' or kind == 'strict' then
    local counts = #state
    for i = 2, counts do
      if state[i] > 0 then
        at = (state[1] + counts + 1 - i) * limit.width
        break
      end
    end
  elseif state[3] > 0 then
    at = end_of(limit, state[1])
  elseif state[2] > 0 then
    at = state[1]
  end
  return math.min(at, FOREVER)
end
