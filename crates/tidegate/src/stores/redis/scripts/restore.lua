-- Restores a counter: merges a known state into it. The larger of both wins; of two logs the union.
--
-- KEYS   1: the record
-- ARGV   1: a plan of one charge; 2: a version byte and its header; 3: a record with that one counter
-- reply  as that of charge.lua, without records; the verdict is 1
-- writes one SET, unless the merged state is as good as fresh

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
