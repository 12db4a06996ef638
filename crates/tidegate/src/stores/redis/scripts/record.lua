-- The record format: the counters of one subject under all rates of one rule, as one string.
--
--   record  version (1 byte), headers in order of their rate, states in the same order
--   header  rate 1, kind 1 (bits 0-2 kind, bit 3 ticks of a millisecond, bit 4 another header
--           follows), tag 4, lengths of the numbers that follow (4 bits each), the numbers
--   state   times in 7 bytes, counts as wide as the header says
--
--   kind          lengths of                     state
--   1 bucket      per_token, per_tick            last, level 7
--   2 fixed       (count), width, phase, guard   end, count, next
--   3 calendar    (count), guard                 start, after, end, count, next
--   4 sliding     (count), width                 index, current, previous
--   5 strict      (count), sub-window            index, 11 counts, newest first
--   6 log         width, grain                   sum 7, entries 2, each: stamp, units 4
--
-- All little-endian. The functions below share as few names as possible: each shared name costs each function that
-- uses it, in every call. A header contains all that is needed to read a state under other parameters. In Lua a limit
-- is a table of its parameters, and a state is an array of the numbers above. (The state of a calendar is that of a
-- fixed window; the entries of a log stay one string.)

local KINDS = { 'bucket', 'fixed', 'calendar', 'sliding', 'strict', 'log' }
local ENTRY = 11
local FOREVER = 9007199254740992

local function number(bytes, at, size)
  local value = 0
  for i = at + size - 1, at, -1 do
    value = value * 256 + string.byte(bytes, i)
  end
  return value
end

-- A time and two counts, by the width of a count. Concatenating the number into the text would format it as a float,
-- which takes longer than all else here.
local PAIRS = { '<I7I1I1', '<I7I2I2', '<I7I3I3', '<I7I4I4' }
local ELEVEN = {
  '<I7I1I1I1I1I1I1I1I1I1I1I1',
  '<I7I2I2I2I2I2I2I2I2I2I2I2',
  '<I7I3I3I3I3I3I3I3I3I3I3I3',
  '<I7I4I4I4I4I4I4I4I4I4I4I4',
}

-- The limit of the header at `at`, the position after it, and whether another header follows.
local function read_header(bytes, at)
  local rate, kind = string.byte(bytes, at, at + 1)
  local more = kind >= 16
  if more then
    kind = kind - 16
  end
  local limit = { rate = rate, unit = kind >= 8 and 1000 or 1, kind = KINDS[kind % 8] }
  local low = string.byte(bytes, at + 6)
  local high = math.floor(low / 16)
  low = low % 16
  local next = at + 7
  if limit.kind == 'bucket' then
    limit.per_token = number(bytes, next, low)
    limit.per_tick = number(bytes, next + low, high)
    next = next + low + high
  elseif limit.kind == 'fixed' then
    local phase = string.byte(bytes, at + 7)
    local guard = math.floor(phase / 16)
    phase = phase % 16
    limit.bytes = low
    limit.width = number(bytes, next + 1, high)
    limit.phase = number(bytes, next + 1 + high, phase)
    limit.guard = number(bytes, next + 1 + high + phase, guard)
    next = next + 1 + high + phase + guard
  elseif limit.kind == 'log' then
    limit.width = number(bytes, next, low)
    limit.grain = number(bytes, next + low, high)
    next = next + low + high
  else
    limit.bytes = low
    limit.width = number(bytes, next, high)
    limit.guard = limit.width
    next = next + high
  end
  limit.head = string.char(rate, kind) .. string.sub(bytes, at + 2, next - 1)
  return limit, next, more
end

-- The state at `at`, and the position after it. The edges in a calendar's state are added to a limit that has none.
local function read_state(bytes, at, limit)
  local kind, size = limit.kind, limit.bytes
  if kind == 'bucket' then
    local last, level, next = struct.unpack('<I7I7', bytes, at)
    return { last, level }, next
  elseif kind == 'log' then
    local sum, count, next = struct.unpack('<I7I2', bytes, at)
    local stop = next + count * ENTRY
    return { sum, string.sub(bytes, next, stop - 1) }, stop
  elseif kind == 'strict' then
    local state = { struct.unpack(ELEVEN[size], bytes, at) }
    return state, table.remove(state)
  elseif kind == 'calendar' then
    local start, after = struct.unpack('<I7I7', bytes, at)
    local stop, count, next_count, next = struct.unpack(PAIRS[size], bytes, at + 14)
    if not limit.edges then
      limit.edges = { start }
      if stop < FOREVER then
        limit.edges[2] = stop
      end
      if after < FOREVER then
        limit.edges[3] = after
      end
    end
    return { stop, count, next_count }, next
  end
  local first, second, third, next = struct.unpack(PAIRS[size], bytes, at)
  return { first, second, third }, next
end

-- The counters of a record in order, each with a limit and a state.
local function read_record(bytes)
  local counters = {}
  if not bytes then
    return counters
  end
  if string.byte(bytes) ~= 1 then
    error('a record of format ' .. string.byte(bytes) .. ' was written by a newer version')
  end
  local at, more = 2, true
  while more do
    local limit
    limit, at, more = read_header(bytes, at)
    counters[#counters + 1] = { limit = limit }
  end
  for _, counter in ipairs(counters) do
    counter.state, at = read_state(bytes, at, counter.limit)
  end
  return counters
end

-- The first tick of the window of `tick`, and the first tick after that window.
local function bounds(limit, tick)
  local edges = limit.edges
  if not edges then
    local into = (tick + limit.phase) % limit.width
    return math.max(tick - into, 0), tick + limit.width - into
  end
  local start = 0
  for i = 1, #edges do
    if edges[i] > tick then
      return start, edges[i]
    end
    start = edges[i]
  end
  return start, FOREVER
end

local function end_of(limit, start)
  local _, stop = bounds(limit, start)
  return stop
end

local function write_state(limit, state)
  local kind, size = limit.kind, limit.bytes
  if kind == 'bucket' then
    return struct.pack('<I7I7', state[1], state[2])
  elseif kind == 'log' then
    return struct.pack('<I7I2', state[1], #state[2] / ENTRY) .. state[2]
  elseif kind == 'strict' then
    return struct.pack(ELEVEN[size], unpack(state))
  elseif kind == 'calendar' then
    local start = bounds(limit, math.max(state[1] - 1, 0))
    local after = end_of(limit, state[1])
    return struct.pack('<I7I7', start, after) .. struct.pack(PAIRS[size], unpack(state))
  end
  return struct.pack(PAIRS[size], unpack(state))
end
