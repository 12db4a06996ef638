-- Forgets counters, and what is open of them.
--
-- KEYS   the ledger of each rule and subject, then as many sets of slots, then as many records, in the
--        same order
-- ARGV   for each record the rates to forget, one byte each
-- reply  how many counters there were, not counting those as good as fresh, and how many slots, in one
--        sum; the call id
-- writes an UNLINK of the slots: whoever has one is told when it is renewed. And of the ledgers: what is
--        forgiven must not come back out of what is charged from now on.
--        All rates of a rule are named together, so nobody goes through what may be a million
--        reservations while every other client waits. And a SET of what is left. The record stays as
--        long as it would have: that one is gone which a node has seen means that the store has lost it

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
