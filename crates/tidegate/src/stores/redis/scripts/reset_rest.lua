
-- The rest of reset.lua, after what the scripts share.

local forgotten = 0
for i, key in ipairs(KEYS) do
  local record, gone = read_record(redis.call('GET', key)), false
  for _, account in ipairs(record) do
    local limit, state = account.limit, account.state
    if string.find(ARGV[i], string.char(limit.rate), 1, true) then
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
return forgotten
