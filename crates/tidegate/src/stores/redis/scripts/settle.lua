-- Corrects an estimate to what was used, once.
--
-- KEYS   the ledger of each rule and subject, then as many records, in the same order
-- ARGV   1: the plan of what was charged, with the estimates as costs; for each record a version byte and
--        its headers; then the id of the reservation, 16 bytes; the time of its charge, the earliest where
--        it was charged in several steps, and how long it lasts, in microseconds; and for each charge what was
--        used, as a double, or nothing at all if nobody said: then the estimate comes back
-- reply  as that of charge.lua, without records; the verdict is 1 corrected, 2 the estimate had come back
--        and what was used is charged now, 0 it is not in the ledger, -1 it is too late to say what was used
-- writes one SET per record that changes, and takes the members out of their ledgers. A counter that is
--        now under another limit gets nothing back: what was a unit then cannot be said now.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
