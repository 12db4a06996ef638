-- Leaves a node's heartbeat and returns those of all nodes.
--
-- KEYS   1: the register. Per node when its last heartbeat was, in milliseconds, and the life it has seeded.
--        `epoch`: the milliseconds since which the data is whole, and random bits. It is drawn anew when the register is
--        gone or was rolled back.
--        `run`: the run of the server that wrote last, the last heartbeat that it found, and the last heartbeat
--        `owner`: the primary of a cluster that the epoch belongs to
--        `since`: the milliseconds since which all data is whole, where hash slots came from a primary that lost some
-- ARGV   1: the node; 2: the life it has seeded, or nothing; 3: the epoch, if there is none yet, without the time if it is
--        new; 4: how long a heartbeat lasts, in milliseconds; 5: how long the register does without one, or
--        nothing if it stays; 6: the run that acknowledged something to this node last, or nothing; 7: when that
--        was, in milliseconds; 8: the epoch that this node knows; 9: the primary; both empty outside a cluster;
--        10: `since`, as this node knows it; 11: the call id
-- reply  seconds, microseconds, the epoch, the run, `since`, the last heartbeat that the run found, then node and seeded
--        life of every node that lives, then the call id
-- writes the register: this heartbeat, the run, a new epoch if it must, and no heartbeats that have ended
--
-- A server that loads a snapshot, or a replica that takes over, has the data of an earlier moment. What is written is
-- kept in order, so a heartbeat that is found shows that all that was written before it is there. A node that knows of
-- something later takes the data for rolled back.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lasts, known_run, known = tonumber(ARGV[4]), ARGV[6], tonumber(ARGV[7])
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

-- A replica that is promoted keeps its run id, and has an offset up to which it followed the other one. The
-- replication id alone changes without any loss, when a first replica is connected.
local replication = redis.call('INFO', 'replication')
local running = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
if not string.find(replication, 'second_repl_offset:-1', 1, true) then
  running = running .. (string.match(replication, 'master_replid:(%x+)') or '0')
end
if run ~= running then
  -- Where nodes bring an epoch along, hash slots have moved and nothing is lost.
  local is_new = not epoch and string.sub(ARGV[3], 1, 11) == '00000000000'
  found = last or (is_new and 0 or now)
end
redis.call('HSET', KEYS[1], 'run', string.format('%s:%.0f:%.0f', running, found, now))

-- A register that came with its hash slot may be that of another primary. One that was rolled back may be older than
-- the epoch that this node knows.
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
    local at, seeded = string.match(value, '^(%d+) (.*)$')
    -- A clock that was set makes heartbeats look old, or to come: they are renewed soon enough.
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
