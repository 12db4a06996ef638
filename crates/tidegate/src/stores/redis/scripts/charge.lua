-- Charges all limits of one request in one step: all are spent or none is.
--
-- KEYS   one record per rule and subject
-- ARGV   1: the plan (see books.lua). Its first byte is 1 if all charges are plain and to be enforced,
--        each counter once, record by record and rates in order; 2 if all are to be charged whether
--        they fit or not; else 0.
--        2 and on: for each key a version byte and the headers of its charges, in order
-- reply  seconds, microseconds (the time decided by), 1 if admitted else 0, then each record as
--        found, nil if there was none; only the time, and nothing done, if the edges of a calendar in
--        the plan are not those around now
-- writes one SET per record of an admitted request, nothing for a refused one but a state that the
--        clock was set back behind. Every record expires when its last counter is as good as fresh.

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
  local size, tick, last, level = #head, now, nil, 0
  if unit ~= 1 then
    tick = (now - now % unit) / unit
  end
  if not record then
    last = tick
  elseif string.sub(record, 1, size) == head then
    last, level = struct.unpack('<I7I7', record, size + 1)
    local drained = (tick - last) * per_tick
    level = drained < level and level - drained or 0
  end
  if last and last <= tick then
    if level > room then
      return { time[1], time[2], 0, record }
    end
    level = level + need
    local expires = math.min(tick + math.ceil(level / per_tick), 9007199254740992)
    if unit == 1 then
      expires = math.ceil(expires / 1000)
    end
    redis.call('SET', KEYS[1], head .. struct.pack('<I7I7', tick, level), 'PXAT', expires)
    return { time[1], time[2], 1, record }
  end
elseif plain then
  -- Buckets, fixed and sliding windows.
  local reply, values, expiries = { time[1], time[2], 1 }, {}, {}
  local formats = { '<I7I1I1', '<I7I2I2', '<I7I3I3', '<I7I4I4' }
  local key, record, at = 0, nil, nil
  for from = 2, #plan, 59 do
    local of, _, shape, cost, limit, a, b, c, unit = struct.unpack('<BBBdddddd', plan, from)
    if of ~= key then
      key, record = of, redis.call('GET', KEYS[of])
      local head = ARGV[1 + of]
      reply[3 + of], values[of], expiries[of], at = record, head, 0, #head + 1
      if record and string.sub(record, 1, #head) ~= head then
        plain = false
        break
      end
    end
    local tick = unit == 1 and now or (now - now % unit) / unit
    local format, first, second, third, expires = '<I7I7', nil, 0, 0, nil
    if shape == 1 then
      if record then
        first, second, at = struct.unpack(format, record, at)
        local drained = (tick - first) * c
        second = drained < second and second - drained or 0
      end
      if second > b then
        reply[3] = 0
      end
      second = second + a
      plain = not first or first <= tick
      first, expires = tick, tick + math.ceil(second / c)
      values[key] = values[key] .. struct.pack(format, first, second)
    else
      format = formats[shape % 8]
      if record then
        first, second, third, at = struct.unpack(format, record, at)
      end
      local into = (tick + b) % a
      if shape < 24 then
        local stop = tick + a - into
        if first ~= stop then
          second, plain = 0, not first or first < stop
        end
        if second + cost > limit then
          reply[3] = 0
        end
        first, expires = stop, stop
      else
        local index = (tick - into) / a
        if first and first ~= index then
          second, third, plain = 0, first == index - 1 and second or 0, first < index
        end
        if (second + cost) * a + third * (a - into) > limit * a then
          reply[3] = 0
        end
        first, expires = index, (index + 2) * a
      end
      values[key] = values[key] .. struct.pack(format, first, second + cost, third)
    end
    if not plain then
      break
    end
    expires = math.min(expires, 9007199254740992)
    if unit == 1 then
      expires = math.ceil(expires / 1000)
    end
    expiries[key] = math.max(expiries[key], expires)
  end
  if plain then
    if reply[3] == 1 then
      for i = 1, key do
        redis.call('SET', KEYS[i], values[i], 'PXAT', expiries[i])
      end
    end
    return reply
  end
end
