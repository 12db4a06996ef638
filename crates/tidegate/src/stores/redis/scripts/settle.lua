-- Settles a reservation, once: corrects the estimate to the units used.
--
-- KEYS   the ledger of each rule and subject, then as many records, in the same order
-- ARGV   1: the plan of what was charged, with the estimates as costs; for each record a version byte and its headers;
--        then the id of the reservation, 16 bytes; the time of its charge, the earliest where it was charged in
--        several steps, and its lifetime, in microseconds; and for each charge the units used, as a double, or empty
--        if they are unknown: then the estimate is refunded
-- reply  as that of charge.lua, without records; the verdict is 1 corrected, 2 the estimate had been refunded and the
--        units used are charged now, 0 it is not in the ledger, -1 it is too late to settle
-- writes one SET per record that changes, and removes the members from their ledgers. A counter that is now under
--        another limit is not refunded: its units are no longer comparable.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
