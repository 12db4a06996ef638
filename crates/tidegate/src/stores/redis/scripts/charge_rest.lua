
-- The rest of charge.lua, after what the scripts share.

local heads, records, found = {}, {}, {}
for i = 1, #KEYS do
  heads[i] = ARGV[1 + i]
end
local charges = read_plan(plan, heads, now)
if not charges then
  return answer(now)
end
for i, key in ipairs(KEYS) do
  found[i] = redis.call('GET', key)
  records[i] = open_record(found[i], heads[i], i, charges)
end
local force = string.byte(plan) == 2

for _, charge in ipairs(charges) do
  charge.account = account_of(records[charge.key], charge.limit, now)
end

-- Judges a charge and, if it fits or is forced, spends it on the account.
local function judge(charge)
  local account, limit = charge.account, charge.limit
  local state, tick = under(account, limit, now)
  local fit = fits(limit, state, tick, charge.cost)
  if fit or force then
    spend(limit, state, tick, charge.cost)
    take(account, limit, state, tick)
  end
  return fit
end

local admitted, quotas, room = true, 0, 0
for _, charge in ipairs(charges) do
  if charge.role ~= 1 then
    local fit = judge(charge)
    if charge.role == 2 then
      quotas = quotas + 1
      room = room + (fit and 1 or 0)
    else
      admitted = admitted and fit
    end
  end
end
admitted = force or (admitted and (quotas == 0 or room > 0))

if not admitted then
  for _, charge in ipairs(charges) do
    restore(charge.account)
  end
end
for _, charge in ipairs(charges) do
  if charge.role == 1 and admitted then
    judge(charge)
  end
end

for i, key in ipairs(KEYS) do
  write_record(key, records[i], now, found[i])
end
return answer(now, admitted and 1 or 0, found)
