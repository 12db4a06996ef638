-- Resets counters, with their permits and reservations.
--
-- KEYS   the ledger of each rule and subject, then as many sets of permits, then as many records, in the same order
-- ARGV   for each record the rates to reset, one byte each
-- reply  one sum: the number of counters, without those as good as fresh, plus the number of permits; the call id
-- writes an UNLINK of the permits: their holders learn it when they renew. And of the ledgers: a reservation that was
--        reset must not be refunded out of later charges. All rates of a rule are reset together, so the script need
--        not scan what may be a million reservations while every other client waits. And a SET of each record, with
--        the reset counters at zero. The record keeps its expiry: a missing record that a node has seen means that the
--        store has lost it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
