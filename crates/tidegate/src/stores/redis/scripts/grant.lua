-- Takes as much as there is of one limit, up to the cost of its charge.
--
-- KEYS   1: the record
-- ARGV   1: a plan of one charge; 2: a version byte and its header
-- reply  seconds, microseconds, units taken as text, the record as found; only the time if the edges
--        of a calendar in the plan are not those around now
-- writes one SET if any were taken, or if the clock was set back behind the state

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
