-- Writes a node's heartbeat and returns those of all nodes.
--
-- KEYS   1: the register. Per node the time of its last heartbeat, in milliseconds, and the epoch it has restored.
--        `epoch`: the milliseconds since which the data is whole, and random bits. It is drawn anew when the register
--        is gone or was rolled back.
--        `run`: the run of the server that wrote last, the last heartbeat that it found, and the last heartbeat
--        `owner`: the primary of a cluster that the epoch belongs to
--        `since`: the milliseconds since which all data is whole, where hash slots came from a primary that lost some
-- ARGV   1: the node; 2: the epoch it has restored, or empty; 3: the data epoch to write if there is none, without
--        the time if it is new; 4: the lifetime of a heartbeat, in milliseconds; 5: the lifetime of the register
--        after the last one, or empty if it never expires; 6: the run that last acknowledged a write of this node, or
--        empty; 7: the time of that write, in milliseconds; 8: the data epoch that this node knows; 9: the primary;
--        both empty outside a cluster; 10: `since`, as this node knows it; 11: the call id
-- reply  seconds, microseconds, the data epoch, the run, `since`, the last heartbeat that the run found, then node and
--        restored epoch of every live node, then the call id
-- writes the register: this heartbeat, the run, a new epoch if needed; removes expired heartbeats
--
-- A server that loads a snapshot, or a replica that takes over, has the data of an earlier moment. Writes keep their
-- order, so a heartbeat that is found shows that all earlier writes are there. A node that knows of a later write
-- concludes that the data was rolled back.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lifetime, known_run, known = tonumber(ARGV[4]), ARGV[6], tonumber(ARGV[7])
local known_epoch, primary, since = ARGV[8], ARGV[9], tonumber(ARGV[10])

local all = redis.call('HGETALL', KEYS[1])
local about = { epoch = false, run = '', owner = '', since = '0' }
for i = 1, #all, 2 do
  if about[all[i]] ~= nil then
    about[all[i]] = all[i + 1]
  end
end
local epoch, run, found, last = about.epoch, string.match(about.run, '^(%x+):(%d+):(%d+)$')

local function begin_of(an_epoch)
  return tonumber(string.sub(an_epoch, 1, 11), 16)
end

-- A replica that is promoted keeps its run id, and has an offset up to which it followed the previous primary. The
-- replication id alone changes without any loss, when a first replica connects.
local replication = redis.call('INFO', 'replication')
local running = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
if not string.find(replication, 'second_repl_offset:-1', 1, true) then
  running = running .. (string.match(replication, 'master_replid:(%x+)') or '0')
end
if run ~= running then
  -- Nodes bring an epoch along when hash slots have moved: then nothing is lost.
  local is_new = not epoch and string.sub(ARGV[3], 1, 11) == '00000000000'
  found = last or (is_new and 0 or now)
end
redis.call('HSET', KEYS[1], 'run', string.format('%s:%.0f:%.0f', running, found, now))

-- A register that moved with its hash slot may be that of another primary. A register that was rolled back may be older
-- than the epoch that this node knows.
local is_other = about.owner ~= primary
since = math.max(since, tonumber(about.since))
if epoch and known_epoch ~= '' and known_epoch ~= epoch
  and (is_other or begin_of(epoch) < begin_of(known_epoch)) then
  since = math.max(since, begin_of(epoch))
  epoch = known_epoch
end
if not epoch then
  epoch = string.gsub(ARGV[3], '^00000000000', string.format('%011x', now))
elseif known_run ~= '' and known_run ~= running and known > tonumber(found) and begin_of(epoch) <= known then
  epoch = string.format('%011x', math.max(now, known + 1)) .. string.sub(ARGV[3], 12)
end
if epoch ~= about.epoch then
  redis.call('HSET', KEYS[1], 'epoch', epoch)
end
if is_other and (known_epoch ~= '' or not about.epoch) then
  redis.call('HSET', KEYS[1], 'owner', primary)
end
if since > tonumber(about.since) then
  redis.call('HSET', KEYS[1], 'since', string.format('%.0f', since))
end

redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
if ARGV[5] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
local reply = {
  time[1], time[2], epoch, running, string.format('%.0f', since), string.format('%.0f', found), ARGV[1], ARGV[2],
}
for i = 1, #all, 2 do
  local node, value = all[i], all[i + 1]
  if about[node] == nil and node ~= ARGV[1] then
    local at, restored = string.match(value, '^(%d+) (.*)$')
    -- After a clock step, heartbeats look old or in the future: they are renewed soon enough.
    if at and math.abs(now - at) <= lifetime then
      reply[#reply + 1] = node
      reply[#reply + 1] = restored
    else
      redis.call('HDEL', KEYS[1], node)
    end
  end
end
reply[#reply + 1] = ARGV[#ARGV]
return reply
