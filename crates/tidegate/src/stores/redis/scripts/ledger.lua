-- The members of a ledger: a state, `o` open or `r` refunded, and the name of one charge of a reservation:
--
--   state 1, id 16, rate 1, tag 4, then the estimate, and its lifetime in microseconds, 7 each
--
-- The score of an open member is its expiry, that of a refunded one the time at which it is forgotten: one more
-- lifetime after its expiry. The time of the charge follows from that and is no part of the name: limits in several
-- hash slots are charged one after another, each at a time of its own, and a settlement knows only the first.

-- The rate and tag of a limit, from its header.
local function counter_of(limit)
  return string.sub(limit.head, 1, 1) .. string.sub(limit.head, 3, 6)
end

local function member_of(id, charge, lasts)
  return id .. counter_of(charge.limit) .. struct.pack('<I7I7', charge.cost, lasts)
end

-- Marks an estimate as refunded, unless the mark has expired already.
local function mark_refunded(ledger, named, charged, lasts, now)
  local forgotten = charged + 2 * lasts
  if forgotten > now then
    redis.call('ZADD', ledger, forgotten, 'r' .. named)
    redis.call('EXPIREAT', ledger, math.ceil(forgotten / 1000000), 'NX')
  end
end
