-- Takes, renews or gives back a slot of what may be open at once.
--
-- KEYS   1: the slots of one rule and subject: per slot the holder, 16 bytes, and when it ends, in
--        microseconds, 7 bytes
-- ARGV   1: the holder; 2: the most that may be open, or -1 to give the slot back; 3: how long the
--        slot lasts, in microseconds
-- reply  1 if the holder has a slot else 0, how many are open
-- writes one SET that expires with the last slot, or a DEL; nothing if refused

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder, most = ARGV[1], tonumber(ARGV[2])
local slots = redis.call('GET', KEYS[1]) or ''
local open, kept, held, last = 0, {}, false, 0

for at = 1, #slots, 23 do
  local ends = struct.unpack('<I7', slots, at + 16)
  if ends > now then
    if string.sub(slots, at, at + 15) == holder then
      held = true
    else
      open = open + 1
      kept[open] = string.sub(slots, at, at + 22)
      last = math.max(last, ends)
    end
  end
end
if most >= 0 then
  if not held and open >= most then
    return { 0, open }
  end
  open = open + 1
  local ends = now + tonumber(ARGV[3])
  kept[open] = holder .. struct.pack('<I7', ends)
  last = math.max(last, ends)
elseif not held then
  return { 0, open }
end
if open == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], table.concat(kept), 'PXAT', math.ceil(last / 1000))
end
return { most >= 0 and 1 or 0, open }
