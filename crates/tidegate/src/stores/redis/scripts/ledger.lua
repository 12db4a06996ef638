-- The members of a ledger: a state, `o` open or `r` come back, and what names one charge of a
-- reservation:
--
--   state 1, id 16, rate 1, tag 4, then the estimate, and how long it lasts in microseconds, 7 each
--
-- The score of an open one is its end, of one that came back when it is forgotten: as long after its end
-- as it lasted. When it was charged follows from that and is no part of the name: limits in several slots
-- are charged one after another, each at a time of its own, and whoever settles knows only the first.

-- The rate and tag of a limit, from its header.
local function counter_of(limit)
  return string.sub(limit.head, 1, 1) .. string.sub(limit.head, 3, 6)
end

local function member_of(id, charge, lasts)
  return id .. counter_of(charge.limit) .. struct.pack('<I7I7', charge.cost, lasts)
end

-- Notes that an estimate came back, unless that is forgotten already.
local function mark_back(ledger, named, charged, lasts, now)
  local forgotten = charged + 2 * lasts
  if forgotten > now then
    redis.call('ZADD', ledger, forgotten, 'r' .. named)
    redis.call('EXPIREAT', ledger, math.ceil(forgotten / 1000000), 'NX')
  end
end
