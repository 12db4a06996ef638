-- Takes units of one limit in advance: up to the cost of its charge, and to half of what is left,
-- rounded up, or an eighth of the cost if that is more and there.
--
-- KEYS   1: the record
-- ARGV   1: a plan of one charge; 2: a version byte and its header
-- reply  as that of charge.lua, with the units taken for the verdict
-- writes one SET if any were taken, or if the clock was set back behind the state

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
