-- Refunds earlier charges as far as the bounds allow, step for step as the Rust code in core/src/algorithms. `charged`
-- is in ticks of the limit.

local function refund(limit, state, tick, charged, units)
  local kind = limit.kind
  if kind == 'bucket' then
    if charged <= tick then
      local undrained = math.max(units * limit.per_token - (tick - charged) * limit.per_tick, 0)
      state[2] = math.max(state[2] - undrained, 0)
    end
  elseif kind == 'sliding' or kind == 'strict' then
    local age = state[1] - math.floor(charged / limit.width)
    if age >= 0 and age <= #state - 2 then
      state[2 + age] = math.max(state[2 + age] - units, 0)
    end
  elseif kind == 'log' then
    local stamp = stamp_of(limit, charged)
    for at = 1, #state[2], ENTRY do
      local held, there = struct.unpack('<I7I4', state[2], at)
      if held == stamp then
        local refunded = math.min(units, there)
        local left = refunded < there and struct.pack('<I7I4', stamp, there - refunded) or ''
        state[1] = state[1] - refunded
        state[2] = string.sub(state[2], 1, at - 1) .. left .. string.sub(state[2], at + ENTRY)
        break
      end
    end
  else
    local stop = end_of(limit, charged)
    if stop == state[1] then
      state[2] = math.max(state[2] - units, 0)
      if guarded(limit, stop, charged) then
        state[3] = math.max(state[3] - units, 0)
      end
    elseif guarded(limit, stop, charged) and end_of(limit, stop) == state[1] then
      state[2] = math.max(state[2] - units, 0)
    end
  end
end

-- Refunds units that were charged to a counter of a record in microsecond `charged`. A counter that is now under
-- another limit is left alone: its units are no longer comparable.
local function refund_units(record, limit, now, charged, units)
  for _, account in ipairs(record) do
    if account.limit.head == limit.head then
      local state = copy(account.state)
      local tick = advance(limit, state, now)
      refund(limit, state, tick, math.floor(charged / limit.unit), units)
      take(account, limit, state, tick)
    end
  end
end
