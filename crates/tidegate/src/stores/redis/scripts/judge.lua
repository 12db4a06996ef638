-- Judges the charges of a request, each of which has its account, and spends them on the accounts: all or none.
-- Returns whether the request is admitted; `spent` marks the charges that were spent.
local function judge_all(charges, now, force)
  local function judge(charge)
    local account, limit = charge.account, charge.limit
    local state, tick = under(account, limit, now)
    local fit = fits(limit, state, tick, charge.cost)
    if fit or force then
      spend(limit, state, tick, charge.cost)
      take(account, limit, state, tick)
      charge.spent = true
    end
    return fit
  end

  local admitted, quotas, room = true, 0, 0
  for _, charge in ipairs(charges) do
    if charge.role ~= 1 then
      local fit = judge(charge)
      if charge.role == 2 then
        quotas = quotas + 1
        room = room + (fit and 1 or 0)
      else
        admitted = admitted and fit
      end
    end
  end
  admitted = force or (admitted and (quotas == 0 or room > 0))
  for _, charge in ipairs(charges) do
    if not admitted then
      roll_back(charge.account)
      charge.spent = false
    end
  end
  for _, charge in ipairs(charges) do
    if charge.role == 1 and admitted then
      judge(charge)
    end
  end
  return admitted
end
