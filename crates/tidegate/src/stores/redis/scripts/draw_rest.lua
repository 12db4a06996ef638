
-- The rest of draw.lua, after what the scripts share.

local found = redis.call('GET', KEYS[1])
local record = read_record(found)
local charges = read_plan(ARGV[1], { ARGV[2] }, now)
if not charges then
  return reply_with(now)
end
local charge = charges[1]
local limit = charge.limit
local account = account_of(record, limit, now)
local state, tick = under(account, limit, now)
local left = remaining(limit, state, tick)
local units = math.max(math.ceil(left / 2), math.ceil(charge.cost / 8))
units = math.min(units, left, charge.cost)
if units > 0 then
  spend(limit, state, tick, units)
  take(account, limit, state, tick)
end
write_record(KEYS[1], record, now, found)
return reply_with(now, units, { found })
