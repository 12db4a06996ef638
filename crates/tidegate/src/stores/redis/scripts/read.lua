-- Reads records without changing them: for a peek or an inspection.
--
-- KEYS   one record per rule and subject
-- ARGV   1: the call id
-- reply  as that of charge.lua; the verdict has no meaning
-- writes nothing

local time = redis.call('TIME')
local reply = struct.pack('<I7d', time[1] * 1000000 + time[2], 0)
for _, key in ipairs(KEYS) do
  local record = redis.call('GET', key) or ''
  reply = reply .. struct.pack('<I4', #record) .. record
end
return reply .. ARGV[#ARGV]
