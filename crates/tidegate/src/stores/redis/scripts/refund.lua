-- Refunds an earlier charge, once, as far as the bounds allow.
--
-- KEYS   1: the id of the refund; then one record per rule and subject
-- ARGV   1: the plan of what was charged; for each record a version byte and its headers; then the time of the charge
--        and the time at which the refund expires, in microseconds
-- reply  as that of charge.lua, without records; the verdict is 1 refunded, 0 this id was refunded before, -1 too late
-- writes the id, until the refund expires, and one SET per record. A counter that is now under another limit is left
--        alone: its units are no longer comparable.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
