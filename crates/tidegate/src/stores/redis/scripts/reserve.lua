-- Charges an estimate like charge.lua, and remembers it until it is settled or its time is over.
-- Estimates of the same rules and subjects whose time is over come back first. Those that were charged before the
-- data is whole do not: they may have been settled, and that went with the data.
--
-- KEYS   the ledger of each rule and subject, then as many records, in the same order
-- ARGV   1: the plan, each counter once; for each record a version byte and its headers; then the id of
--        the reservation, 16 bytes; how long it lasts; and since when the data is whole, both in microseconds
-- reply  as that of charge.lua; the records are as found after estimates came back
-- writes as charge.lua; a record that something came back to even if the request is refused; and one
--        member of a ledger for each charge that was spent
--
-- A ledger is a sorted set (see ledger.lua). It expires when no member can matter any more: an estimate
-- that has drained, or whose window is over, has nothing left to come back.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
