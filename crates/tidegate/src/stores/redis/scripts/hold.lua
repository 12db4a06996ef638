-- Takes, renews or gives back a slot of what may be open at once.
--
-- KEYS   1: the slots of one rule and subject: a sorted set of holders, 16 bytes each, by when their
--        slots end, in microseconds
-- ARGV   1: the holder; 2: `take`, `renew` or `release`; 3: the most that may be open; 4: how long the
--        slot lasts, in microseconds; 5: the call id
-- reply  1 if the holder has a slot now else 0, how many are open, the call id
-- writes the set without what has ended, expiring with the last slot; nothing if refused

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder, verb, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- A number that Lua writes by itself loses digits.
local function whole(number)
  return string.format('%.0f', number)
end

local ends = tonumber(redis.call('ZSCORE', KEYS[1], holder) or '0')
local held = ends > now
local open = redis.call('ZCOUNT', KEYS[1], '(' .. whole(now), '+inf')

if verb == 'release' then
  if held then
    redis.call('ZREM', KEYS[1], holder)
    open = open - 1
  end
  return { 0, open, ARGV[#ARGV] }
end
if not held and (verb == 'renew' or open >= most) then
  return { 0, open, ARGV[#ARGV] }
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
local till = now + tonumber(ARGV[4])
if verb == 'take' and held then
  -- A node that puts back what it remembers may know an older end.
  till = math.max(till, ends)
end
redis.call('ZADD', KEYS[1], whole(till), holder)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(tonumber(last) / 1000)))
if not held then
  open = open + 1
end
return { 1, open, ARGV[#ARGV] }
