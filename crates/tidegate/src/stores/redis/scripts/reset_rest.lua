
-- The rest of reset.lua, after what the scripts share.

local function names(rates, rate)
  return string.find(rates, rate, 1, true)
end

local count, forgotten = #KEYS / 3, 0
for i = 1, count do
  local ledger, slots, key = KEYS[i], KEYS[count + i], KEYS[2 * count + i]
  forgotten = forgotten + redis.call('ZCOUNT', slots, string.format('(%.0f', now), '+inf')
  redis.call('UNLINK', ledger, slots)
  local record, gone = read_record(redis.call('GET', key)), false
  for _, account in ipairs(record) do
    local limit, state = account.limit, account.state
    if names(ARGV[i], string.char(limit.rate)) then
      forgotten = forgotten + (fresh_at(limit, state, 0) * limit.unit > now and 1 or 0)
      gone = true
      if limit.kind == 'log' then
        state[1], state[2] = 0, ''
      else
        for part = 2, #state do
          state[part] = 0
        end
      end
    end
  end
  if gone then
    redis.call('SET', key, record_bytes(record), 'KEEPTTL')
  end
end
return { forgotten, ARGV[#ARGV] }
