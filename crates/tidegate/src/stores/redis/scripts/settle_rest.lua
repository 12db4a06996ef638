
-- The rest of settle.lua, after what the scripts share.

local count = #KEYS / 2
local id, used = ARGV[count + 2], ARGV[count + 5]
local earliest, lasts = tonumber(ARGV[count + 3]), tonumber(ARGV[count + 4])
if used ~= '' and now >= earliest + 2 * lasts then
  return reply_with(now, -1, {})
end
local heads, records, found = {}, {}, {}
for i = 1, count do
  heads[i] = ARGV[1 + i]
  found[i] = redis.call('GET', KEYS[count + i])
  records[i] = read_record(found[i])
end
local charges = read_plan(ARGV[1], heads, now)
if not charges then
  return reply_with(now)
end

local function charge_more(charge, units)
  local limit = charge.limit
  local account = account_of(records[charge.key], limit, now)
  local state, tick = under(account, limit, now)
  spend(limit, state, tick, units)
  take(account, limit, state, tick)
end

local function refund_estimate(charge, charged, units)
  refund_units(records[charge.key], charge.limit, now, charged, units)
end

local corrected, late = false, false
for i, charge in ipairs(charges) do
  local ledger, named = KEYS[charge.key], member_of(id, charge, lasts)
  local actual = used ~= '' and struct.unpack('<d', used, 8 * i - 7)
  local ends = redis.call('ZSCORE', ledger, 'o' .. named)
  if ends then
    local charged = tonumber(ends) - lasts
    redis.call('ZREM', ledger, 'o' .. named)
    corrected = true
    if not actual then
      refund_estimate(charge, charged, charge.cost)
      mark_refunded(ledger, named, charged, lasts, now)
    elseif actual < charge.cost then
      refund_estimate(charge, charged, charge.cost - actual)
    elseif actual > charge.cost then
      charge_more(charge, actual - charge.cost)
    end
  elseif actual and redis.call('ZREM', ledger, 'r' .. named) == 1 then
    late = true
    if actual > 0 then
      charge_more(charge, actual)
    end
  end
end
for i = 1, count do
  write_record(KEYS[count + i], records[i], now, found[i])
end
return reply_with(now, corrected and 1 or late and 2 or 0, {})
