-- Reserves: charges an estimate like charge.lua, and remembers it until it is settled or expires. Expired estimates of
-- the same rules and subjects are refunded first. Those charged before the moment since which the data is whole are
-- not: they may have been settled, and a loss of data loses that mark, too.
--
-- KEYS   the ledger of each rule and subject, then as many records, in the same order
-- ARGV   1: the plan, each counter once; for each record a version byte and its headers; then the id of the
--        reservation, 16 bytes; its lifetime; and the moment since which the data is whole, both in microseconds
-- reply  as that of charge.lua; the records are as found after the refunds
-- writes as charge.lua; a refunded record even if the request is denied; and one member of a ledger for each charge
--        that was spent
--
-- A ledger is a sorted set (see ledger.lua). It expires when no member can matter any more: an estimate that has
-- drained, or whose window is over, has nothing left to refund.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
