-- Forgets counters.
--
-- KEYS   one record per rule and subject
-- ARGV   for each key the rates to forget, one byte each
-- reply  how many there were, not counting those as good as fresh
-- writes a SET of what is left. The record stays as long as it would have: that one is gone which a
--        node has seen means that the store has lost it

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
