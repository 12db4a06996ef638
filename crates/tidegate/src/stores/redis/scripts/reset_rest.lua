
-- The rest of reset.lua, after what the scripts share.

local function names(rates, rate)
  return string.find(rates, rate, 1, true)
end

local count, reset_count = #KEYS / 3, 0
for i = 1, count do
  local ledger, permits, key = KEYS[i], KEYS[count + i], KEYS[2 * count + i]
  reset_count = reset_count + redis.call('ZCOUNT', permits, string.format('(%.0f', now), '+inf')
  redis.call('UNLINK', ledger, permits)
  local record, changed = read_record(redis.call('GET', key)), false
  for _, account in ipairs(record) do
    local limit, state = account.limit, account.state
    if names(ARGV[i], string.char(limit.rate)) then
      reset_count = reset_count + (fresh_at(limit, state, 0) * limit.unit > now and 1 or 0)
      changed = true
      if limit.kind == 'log' then
        state[1], state[2] = 0, ''
      else
        for part = 2, #state do
          state[part] = 0
        end
      end
    end
  end
  if changed then
    redis.call('SET', key, record_bytes(record), 'KEEPTTL')
  end
end
return { reset_count, ARGV[#ARGV] }
