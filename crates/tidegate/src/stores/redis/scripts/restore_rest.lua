
-- The rest of restore.lua, after what the scripts share.

local ENDLESS = math.huge

local function merge_logs(limit, state, other)
  local newest = 0
  for _, log in ipairs({ state, other }) do
    if log[2] ~= '' then
      newest = math.max(newest, (struct.unpack('<I7', log[2], #log[2] - ENTRY + 1)))
    end
  end
  local seen = math.max(newest - (limit.grain - 1), 0)
  local since, all, mine = 0, {}, {}
  for _, log in ipairs({ other, state }) do
    advance_to(limit, log, seen, ENDLESS)
    if #log[2] >= FULL then
      since = math.max(since, (struct.unpack('<I7', log[2])))
    end
  end
  for at = 1, #state[2], ENTRY do
    local stamp, units = struct.unpack('<I7I4', state[2], at)
    local entry = { stamp, units, #all }
    all[#all + 1] = entry
    mine[stamp] = entry
  end
  for at = 1, #other[2], ENTRY do
    local stamp, units = struct.unpack('<I7I4', other[2], at)
    if mine[stamp] then
      mine[stamp][2] = math.max(mine[stamp][2], units)
    else
      all[#all + 1] = { stamp, units, #all }
    end
  end
  table.sort(all, function(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[3] < b[3])
  end)
  state[1], state[2] = 0, ''
  for _, entry in ipairs(all) do
    if entry[1] >= since then
      push(state, entry[1], entry[2])
    end
  end
  clamp_debt(limit, state)
end

-- Merges `other` into `state`: the larger value of each. Both were made with this limit.
local function merge(limit, state, other)
  local kind = limit.kind
  if kind == 'log' then
    return merge_logs(limit, state, other)
  end
  local newest = math.max(state[1], other[1])
  if kind == 'sliding' or kind == 'strict' then
    newest = newest * limit.width
  elseif kind ~= 'bucket' then
    newest = bounds(limit, math.max(newest - 1, 0))
  end
  advance_to(limit, other, newest, ENDLESS)
  advance_to(limit, state, newest, ENDLESS)
  local max_units = kind == 'bucket' and 2 * limit.limit * limit.per_token or 2 * limit.limit
  for i = 2, #state do
    state[i] = math.min(math.max(state[i], other[i]), max_units)
  end
  if kind == 'strict' then
    clamp_debt(limit, state)
  end
end

local found = redis.call('GET', KEYS[1])
local record = read_record(found)
local charges = read_plan(ARGV[1], { ARGV[2] }, now)
if not charges then
  return reply_with(now)
end
local limit = charges[1].limit
local account = account_of(record, limit, now)
local state = under(account, limit, now)
merge(limit, state, read_record(ARGV[3])[1].state)
local tick = advance(limit, state, now)
if fresh_at(limit, state, tick) * limit.unit > now then
  take(account, limit, state, tick)
end
write_record(KEYS[1], record, now, found)
return reply_with(now, 1, {})
