-- Charges all limits of one request in one step: all are charged or none is.
--
-- KEYS   one record per rule and subject
-- ARGV   1: the plan (see accounts.lua). Its first byte is 1 if all charges are plain and enforced, each counter once,
--        record by record and rates in order; 2 if all are charged whether they fit or not; else 0.
--        2 and on: for each key a version byte and the headers of its charges, in order
--        the last: the call id, as for every script: the reply ends with it
-- reply  one string: the time of the decision in microseconds 7, 1 if admitted else 0 as a double, then each record as
--        found, its length before it in 4 bytes, then the call id; only the time and the id, and nothing done, if the
--        edges of a calendar in the plan are not those around now
-- writes one SET per record of an admitted request. A denied one writes nothing, except a state that is ahead of a
--        clock that was set back. Every record expires with the second in which its last counter is as good as fresh.
--        A write that does not change that second keeps the expiry, which costs half of setting it. No write brings
--        an expiry forward: a refund leaves it later than its counters need, and a record that is gone earlier than
--        a node has seen means that the store has lost it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local plan = ARGV[1]

-- Most calls end before any function below is defined, since a script defines all of them anew each time: plain
-- charges of records with the same parameters, by a clock that has not been set back. All other calls continue below,
-- which decides the same.
local plain = string.byte(plan) == 1

if plain and #plan == 68 and string.byte(plan, 4) == 1 then
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
      return struct.pack('<I7dI4', now, 0, #record) .. record .. ARGV[#ARGV]
    end
    level = level + need
    local expires = math.ceil((tick + math.ceil(level / per_tick)) / second)
    local value = head .. struct.pack('<I7I7', tick, level)
    if record == '' then
      redis.call('SET', KEYS[1], value, 'EXAT', math.min(expires, 9007199254740))
    else
      redis.call('SET', KEYS[1], value, 'KEEPTTL')
      if expires ~= expired then
        redis.call('EXPIREAT', KEYS[1], math.min(expires, 9007199254740), 'GT')
      end
    end
    return struct.pack('<I7dI4', now, 1, #record) .. record .. ARGV[#ARGV]
  end
elseif plain then
  -- Buckets, fixed and sliding windows. Writes wait until all charges have been judged: the write of the last record in
  -- local variables, those of earlier records in `waiting`. `expired` is negative where there is no record.
  local call, take, pack, ceil = redis.call, struct.unpack, struct.pack, math.ceil
  local admitted, reply, waiting, key = 1, '', nil, 0
  local record, at, value, expires, expired
  for from = 2, #plan, 67 do
    local of, _, shape, cost, limit, a, b, c, unit = take('<BBBdddddd', plan, from)
    if of ~= key then
      if key > 0 then
        waiting = waiting or {}
        waiting[3 * key - 2], waiting[3 * key - 1], waiting[3 * key] = value, expires, expired
      end
      key, value, expires, expired = of, ARGV[1 + of], 1, -1
      record, at = call('GET', KEYS[of]) or '', #value + 1
      reply = reply .. pack('<I4', #record) .. record
      if record ~= '' and string.sub(record, 1, at - 1) ~= value then
        plain = false
        break
      end
    end
    local tick, second = now, 1000000 / unit
    if unit ~= 1 then
      tick = (now - now % unit) / unit
    end
    local first, used, before, fresh, was = nil, 0, 0, nil, 0
    if shape == 1 then
      if record ~= '' then
        first, used, at = take('<I7I7', record, at)
        plain = first <= tick
        was = first + ceil(used / c)
        local drained = (tick - first) * c
        used = drained < used and used - drained or 0
      end
      if used > b then
        admitted = 0
      end
      used = used + a
      fresh = tick + ceil(used / c)
      value = value .. pack('<I7I7', tick, used)
    else
      local into, size, format = (tick + b) % a, shape % 8, '<I7I1I1'
      if size == 2 then
        format = '<I7I2I2'
      elseif size == 3 then
        format = '<I7I3I3'
      elseif size == 4 then
        format = '<I7I4I4'
      end
      if record ~= '' then
        first, used, before, at = take(format, record, at)
      end
      if shape < 24 then
        fresh = tick + a - into
        if first ~= fresh then
          used, plain = 0, not first or first < fresh
        elseif used > 0 then
          was = fresh
        end
        if used + cost > limit then
          admitted = 0
        end
        first = fresh
      else
        local index = (tick - into) / a
        fresh = (index + 2) * a
        if first ~= index then
          plain = not first or first < index
          used, before = 0, first == index - 1 and used or 0
        elseif used > 0 then
          was = fresh
        end
        if (used + cost) * a + before * (a - into) > limit * a then
          admitted = 0
        end
        first = index
      end
      value = value .. pack(format, first, used + cost, before)
    end
    if not plain then
      break
    end
    fresh, was = ceil(fresh / second), ceil(was / second)
    if fresh > expires then
      expires = fresh
    end
    if record ~= '' and was > expired then
      expired = was
    end
  end
  if plain then
    if admitted == 1 then
      for i = key, 1, -1 do
        if i < key then
          value, expires, expired = waiting[3 * i - 2], waiting[3 * i - 1], waiting[3 * i]
        end
        if expired < 0 then
          call('SET', KEYS[i], value, 'EXAT', math.min(expires, 9007199254740))
        else
          call('SET', KEYS[i], value, 'KEEPTTL')
          if expires ~= expired then
            call('EXPIREAT', KEYS[i], math.min(expires, 9007199254740), 'GT')
          end
        end
      end
    end
    return pack('<I7d', now, admitted) .. reply .. ARGV[#ARGV]
  end
end
