
-- The rest of refund.lua, after what the scripts share.

local function refund(limit, state, tick, charged, units)
  local kind = limit.kind
  if kind == 'bucket' then
    if charged <= tick then
      local kept = math.max(units * limit.per_token - (tick - charged) * limit.per_tick, 0)
      state[2] = math.max(state[2] - kept, 0)
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
        local back = math.min(units, there)
        local left = back < there and struct.pack('<I7I4', stamp, there - back) or ''
        state[1] = state[1] - back
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

local count = #KEYS - 1
local charged, ends = tonumber(ARGV[count + 2]), tonumber(ARGV[count + 3])
if now >= ends then
  return answer(now, -1, {})
end
local heads, records, found = {}, {}, {}
for i = 1, count do
  heads[i] = ARGV[1 + i]
  found[i] = redis.call('GET', KEYS[1 + i])
  records[i] = read_record(found[i])
end
local charges = read_plan(ARGV[1], heads, now)
if not charges then
  return answer(now)
end
if not redis.call('SET', KEYS[1], '', 'PXAT', math.ceil(ends / 1000), 'NX') then
  return answer(now, 0, {})
end
for _, charge in ipairs(charges) do
  local limit = charge.limit
  for _, account in ipairs(records[charge.key]) do
    if account.limit.head == limit.head then
      local state = copy(account.state)
      local tick = advance(limit, state, now)
      refund(limit, state, tick, math.floor(charged / limit.unit), charge.cost)
      take(account, limit, state, tick)
    end
  end
end
for i = 1, count do
  write_record(KEYS[1 + i], records[i], now, found[i])
end
return answer(now, 1, {})
