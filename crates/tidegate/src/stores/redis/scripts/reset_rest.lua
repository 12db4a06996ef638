
local forgotten = 0
for i, key in ipairs(KEYS) do
  local record, left, gone = read_record(redis.call('GET', key)), {}, false
  for _, account in ipairs(record) do
    if string.find(ARGV[i], char(account.limit.rate), 1, true) then
      local live = fresh_at(account.limit, account.state, 0) * account.limit.unit > now
      forgotten = forgotten + (live and 1 or 0)
      gone = true
    else
      left[#left + 1] = account
    end
  end
  if gone and #left == 0 then
    redis.call('DEL', key)
  elseif gone then
    redis.call('SET', key, record_bytes(left), 'KEEPTTL')
  end
end
return forgotten
