-- Charges all limits of one request in one step: all are spent or none is.
--
-- KEYS   one record per rule and subject
-- ARGV   1: the plan (see books.lua). Its first byte is 1 if all charges are plain and to be enforced,
--        each counter once, record by record and rates in order; 2 if all are to be charged whether
--        they fit or not; else 0.
--        2 and on: for each key a version byte and the headers of its charges, in order
-- reply  one string: the time decided by in microseconds 7, 1 if admitted else 0 as a double, then each
--        record as found, its length before it in 4 bytes; only the time, and nothing done, if the
--        edges of a calendar in the plan are not those around now
-- writes one SET per record of an admitted request, nothing for a refused one but a state that the
--        clock was set back behind. Every record expires with the second in which its last counter
--        is as good as fresh; a write that does not change that second keeps the expiry there is,
--        which costs half of setting it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local plan = ARGV[1]

-- Most calls end before any function below is made, since a script makes all of them anew each time:
-- plain charges, of records that were made under the same parameters by a clock that has not been
-- set back. All other calls go on below, which decides the same.
local plain = string.byte(plan) == 1

if plain and #plan == 60 and string.byte(plan, 4) == 1 then
  -- One bucket.
  local need, room, per_tick, unit = struct.unpack('<dddd', plan, 21)
  local record, head = redis.call('GET', KEYS[1]), ARGV[2]
  local size, second, tick, last, level, expired = #head, 1000000 / unit, now, nil, 0, 0
  if unit ~= 1 then
    tick = (now - now % unit) / unit
  end
  if not record then
    record, last = '', tick
  elseif string.sub(record, 1, size) == head then
    last, level = struct.unpack('<I7I7', record, size + 1)
    expired = math.ceil((last + math.ceil(level / per_tick)) / second)
    local drained = (tick - last) * per_tick
    level = drained < level and level - drained or 0
  end
  if last and last <= tick then
    if level > room then
      return struct.pack('<I7dI4', now, 0, #record) .. record
    end
    level = level + need
    local expires = math.ceil((tick + math.ceil(level / per_tick)) / second)
    local value = head .. struct.pack('<I7I7', tick, level)
    if expires == expired then
      redis.call('SET', KEYS[1], value, 'KEEPTTL')
    else
      redis.call('SET', KEYS[1], value, 'EXAT', math.min(expires, 9007199254740))
    end
    return struct.pack('<I7dI4', now, 1, #record) .. record
  end
elseif plain then
  -- Buckets, fixed and sliding windows.
  local reply, values, expires, expired = {}, {}, {}, {}
  local formats = { '<I7I1I1', '<I7I2I2', '<I7I3I3', '<I7I4I4' }
  local admitted, key, record, at = 1, 0, nil, nil
  for from = 2, #plan, 59 do
    local of, _, shape, cost, limit, a, b, c, unit = struct.unpack('<BBBdddddd', plan, from)
    if of ~= key then
      key, record = of, redis.call('GET', KEYS[of]) or ''
      local head = ARGV[1 + of]
      reply[key] = struct.pack('<I4', #record) .. record
      values[of], expires[of], expired[of], at = head, 1, 0, #head + 1
      if record ~= '' and string.sub(record, 1, #head) ~= head then
        plain = false
        break
      end
    end
    local tick = unit == 1 and now or (now - now % unit) / unit
    local first, second, third, fresh, was = nil, 0, 0, nil, 0
    if shape == 1 then
      if record ~= '' then
        first, second, at = struct.unpack('<I7I7', record, at)
        was = first + math.ceil(second / c)
        local drained = (tick - first) * c
        second = drained < second and second - drained or 0
      end
      if second > b then
        admitted = 0
      end
      second = second + a
      plain = not first or first <= tick
      fresh = tick + math.ceil(second / c)
      values[key] = values[key] .. struct.pack('<I7I7', tick, second)
    else
      local format, into = formats[shape % 8], (tick + b) % a
      if record ~= '' then
        first, second, third, at = struct.unpack(format, record, at)
      end
      if shape < 24 then
        fresh = tick + a - into
        was = second > 0 and first or 0
        if first ~= fresh then
          second, plain = 0, not first or first < fresh
        end
        if second + cost > limit then
          admitted = 0
        end
        first = fresh
      else
        local index = (tick - into) / a
        fresh = (index + 2) * a
        if first == index then
          was = second > 0 and fresh or 0
        elseif first then
          second, third, plain = 0, first == index - 1 and second or 0, first < index
        end
        if (second + cost) * a + third * (a - into) > limit * a then
          admitted = 0
        end
        first = index
      end
      values[key] = values[key] .. struct.pack(format, first, second + cost, third)
    end
    if not plain then
      break
    end
    expires[key] = math.max(expires[key], math.ceil(fresh / (1000000 / unit)))
    expired[key] = math.max(expired[key], math.ceil(was / (1000000 / unit)))
  end
  if plain then
    for i = 1, admitted * key do
      if expires[i] == expired[i] then
        redis.call('SET', KEYS[i], values[i], 'KEEPTTL')
      else
        redis.call('SET', KEYS[i], values[i], 'EXAT', math.min(expires[i], 9007199254740))
      end
    end
    return struct.pack('<I7d', now, admitted) .. table.concat(reply)
  end
end
