-- Forgets counters.
--
-- KEYS   the ledger of each rule and subject, then as many records, in the same order
-- ARGV   for each record the rates to forget, one byte each
-- reply  how many there were, not counting those as good as fresh
-- writes an UNLINK of the ledgers: what is forgiven must not come back out of what is charged from now on.
--        All rates of a rule are named together, so nobody goes through what may be a million
--        reservations while every other client waits. And a SET of what is left. The record stays as
--        long as it would have: that one is gone which a node has seen means that the store has lost it

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
