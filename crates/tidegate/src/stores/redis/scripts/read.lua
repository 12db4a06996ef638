-- Reads records without touching them: for a peek or an inspection.
--
-- KEYS   one record per rule and subject
-- reply  seconds, microseconds, then each record, nil if there is none
-- writes nothing

local time = redis.call('TIME')
local reply = { time[1], time[2] }
for i, key in ipairs(KEYS) do
  reply[2 + i] = redis.call('GET', key)
end
return reply
