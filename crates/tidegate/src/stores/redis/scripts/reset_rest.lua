
-- The rest of reset.lua, after what the scripts share.

local forgotten = 0
for i, key in ipairs(KEYS) do
  local record, left, expires, gone = read_record(redis.call('GET', key)), {}, 1, false
  for _, account in ipairs(record) do
    local at = fresh_at(account.limit, account.state, 0)
    local live = at * account.limit.unit > now
    if string.find(ARGV[i], string.char(account.limit.rate), 1, true) then
      forgotten = forgotten + (live and 1 or 0)
      gone = true
    elseif live then
      left[#left + 1] = account
      expires = math.max(expires, math.ceil(at / (1000000 / account.limit.unit)))
    end
  end
  if gone and #left == 0 then
    redis.call('DEL', key)
  elseif gone then
    redis.call('SET', key, record_bytes(left), 'EXAT', math.min(expires, LATEST))
  end
end
return forgotten
