-- Forgets counters.
--
-- KEYS   one record per rule and subject
-- ARGV   for each key the rates to forget, one byte each
-- reply  how many there were, not counting those as good as fresh
-- writes a DEL, or a SET of what is left

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
