-- Leaves a node's sign of life and tells those of all nodes.
--
-- KEYS   1: the register: per node when it last beat, in milliseconds, and the life it has seeded; and
--        the epoch, which is drawn anew when the register is gone: the milliseconds of that time, and
--        random bits
-- ARGV   1: the node; 2: the life it has seeded, or nothing; 3: the epoch, if there is none yet, without the time if it is
--        new; 4: how long a beat lasts, in milliseconds; 5: how long the register does without one, or
--        nothing if it stays; 6: the call id
-- reply  seconds, microseconds, the epoch, then node and seeded life of every node that lives, then the call id
-- writes the register: this beat, and no beats that have ended

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lasts = tonumber(ARGV[4])
local epoch = string.gsub(ARGV[3], '^00000000000', string.format('%011x', now))
redis.call('HSETNX', KEYS[1], 'epoch', epoch)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
if ARGV[5] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
local all = redis.call('HGETALL', KEYS[1])
local reply = { time[1], time[2], '' }
for i = 1, #all, 2 do
  local node, value = all[i], all[i + 1]
  if node == 'epoch' then
    reply[3] = value
  else
    local at, seeded = string.match(value, '^(%d+) (.*)$')
    -- A clock that was set makes beats look old, or to come: they are renewed soon enough.
    if at and math.abs(now - at) <= lasts then
      reply[#reply + 1] = node
      reply[#reply + 1] = seeded
    else
      redis.call('HDEL', KEYS[1], node)
    end
  end
end
reply[#reply + 1] = ARGV[#ARGV]
return reply
