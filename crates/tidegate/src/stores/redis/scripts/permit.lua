-- Acquires, renews or releases a permit of a concurrency limit.
--
-- KEYS   1: the permits of one rule and subject: a sorted set of holders, 16 bytes each, by the time at which their
--        permits expire, in microseconds
-- ARGV   1: the holder; 2: `acquire`, `renew` or `release`; 3: the max permits in use; 4: the lifetime of the permit, in
--        microseconds; 5: the call id
-- reply  1 if the holder has a permit now else 0, the number of permits in use, the call id
-- writes the set without expired permits, expiring with the last one; nothing if denied

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder, verb, max_permits = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- Lua formats a large number with too few digits.
local function whole(number)
  return string.format('%.0f', number)
end

local ends = tonumber(redis.call('ZSCORE', KEYS[1], holder) or '0')
local has_permit = ends > now
local in_use = redis.call('ZCOUNT', KEYS[1], '(' .. whole(now), '+inf')

if verb == 'release' then
  if has_permit then
    redis.call('ZREM', KEYS[1], holder)
    in_use = in_use - 1
  end
  return { 0, in_use, ARGV[#ARGV] }
end
if not has_permit and (verb == 'renew' or in_use >= max_permits) then
  return { 0, in_use, ARGV[#ARGV] }
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
local expires = now + tonumber(ARGV[4])
if verb == 'acquire' and has_permit then
  -- A node that restores what it remembers may know an older expiry.
  expires = math.max(expires, ends)
end
redis.call('ZADD', KEYS[1], whole(expires), holder)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(tonumber(last) / 1000)))
if not has_permit then
  in_use = in_use + 1
end
return { 1, in_use, ARGV[#ARGV] }
