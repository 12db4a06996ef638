
-- The rest of charge.lua, after what the scripts share.

local heads, records, found = {}, {}, {}
for i = 1, #KEYS do
  heads[i] = ARGV[1 + i]
end
local charges = read_plan(plan, heads, now)
if not charges then
  return reply_with(now)
end
for i, key in ipairs(KEYS) do
  found[i] = redis.call('GET', key)
  records[i] = open_record(found[i], heads[i], i, charges)
end
local force = string.byte(plan) == 2

for _, charge in ipairs(charges) do
  charge.account = account_of(records[charge.key], charge.limit, now)
end

local admitted = judge_all(charges, now, force)
for i, key in ipairs(KEYS) do
  write_record(key, records[i], now, found[i])
end
return reply_with(now, admitted and 1 or 0, found)
