
-- The rest of refund.lua, after what the scripts share.

local count = #KEYS - 1
local charged, ends = tonumber(ARGV[count + 2]), tonumber(ARGV[count + 3])
if now >= ends then
  return reply_with(now, -1, {})
end
local heads, records, found = {}, {}, {}
for i = 1, count do
  heads[i] = ARGV[1 + i]
  found[i] = redis.call('GET', KEYS[1 + i])
  records[i] = read_record(found[i])
end
local charges = read_plan(ARGV[1], heads, now)
if not charges then
  return reply_with(now)
end
if not redis.call('SET', KEYS[1], '', 'PXAT', math.ceil(ends / 1000), 'NX') then
  return reply_with(now, 0, {})
end
for _, charge in ipairs(charges) do
  refund_units(records[charge.key], charge.limit, now, charged, charge.cost)
end
for i = 1, count do
  write_record(KEYS[1 + i], records[i], now, found[i])
end
return reply_with(now, 1, {})
