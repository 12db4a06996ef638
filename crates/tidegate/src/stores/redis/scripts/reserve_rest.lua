
-- The rest of reserve.lua, after what the scripts share.

-- More at once would block the server for other clients; the next reservation continues.
local AT_ONCE = 200

local count = #KEYS / 2
local id, lasts, since = ARGV[count + 2], tonumber(ARGV[count + 3]), tonumber(ARGV[count + 4])
local heads, records, found = {}, {}, {}
for i = 1, count do
  heads[i] = ARGV[1 + i]
end
local charges = read_plan(ARGV[1], heads, now)
if not charges then
  return reply_with(now)
end

-- Refunds expired estimates. A counter that is now under another limit is left alone.
local function refund_expired(i)
  local ledger, key = KEYS[i], KEYS[count + i]
  local ended = redis.call('ZRANGEBYSCORE', ledger, '-inf', now, 'WITHSCORES', 'LIMIT', 0, AT_ONCE)
  if #ended == 0 then
    return
  end
  local bytes = redis.call('GET', key)
  local record = read_record(bytes)
  for at = 1, #ended, 2 do
    local member = ended[at]
    if string.sub(member, 1, 1) == 'o' then
      local estimate, span = struct.unpack('<I7I7', member, 23)
      local charged = tonumber(ended[at + 1]) - span
      if charged >= since then
        for _, charge in ipairs(charges) do
          if charge.key == i and string.sub(member, 18, 22) == counter_of(charge.limit) then
            refund_units(record, charge.limit, now, charged, estimate)
          end
        end
        mark_refunded(ledger, string.sub(member, 2), charged, span, now)
      end
    end
    redis.call('ZREM', ledger, member)
  end
  write_record(key, record, now, bytes)
end

for i = 1, count do
  local key = KEYS[count + i]
  refund_expired(i)
  found[i] = redis.call('GET', key)
  records[i] = open_record(found[i], heads[i], i, charges)
end
for _, charge in ipairs(charges) do
  charge.account = account_of(records[charge.key], charge.limit, now)
end
local admitted = judge_all(charges, now, false)
for i = 1, count do
  write_record(KEYS[count + i], records[i], now, found[i])
end

local ends = now + lasts
for _, charge in ipairs(charges) do
  if charge.spent then
    local account, ledger = charge.account, KEYS[charge.key]
    local fresh = fresh_at(account.limit, account.state, account.tick) * account.limit.unit
    local matters = math.ceil(math.max(fresh, ends + lasts) / 1000000)
    redis.call('ZADD', ledger, ends, 'o' .. member_of(id, charge, lasts))
    redis.call('EXPIREAT', ledger, math.min(matters, LATEST), 'NX')
    redis.call('EXPIREAT', ledger, math.min(matters, LATEST), 'GT')
  end
end
return reply_with(now, admitted and 1 or 0, found)
