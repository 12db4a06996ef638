-- Draws a lease: units of one limit in advance, at most the cost of the charge, and at most half of what remains,
-- rounded up, or an eighth of the cost if that is more and remains.
--
-- KEYS   1: the record
-- ARGV   1: a plan of one charge; 2: a version byte and its header
-- reply  as that of charge.lua, with the units drawn as the verdict
-- writes one SET if any were drawn, or if the state is ahead of a clock that was set back

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
