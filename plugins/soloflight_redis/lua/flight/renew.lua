-- Renew: extend the lease. Only a larger progress count moves the progress deadline.
--
-- done DUPLICATE WATCHERS | refused WHY

local tag, fence_number, fence_nonce, lease_ms, progress, progress_ms = unpack(ARGV)

local flight = load({'progress', 'progress_until'})
local state = standing(flight)
if not state then return reply('refused', 'gone') end
if (state ~= 'P' and state ~= 'R') or not ours(flight) then return reply('refused', 'fenced') end
if now > number(flight.deadline) then return reply('refused', 'expired') end

local advanced = number(progress) > number(flight.progress)
-- stalled: to beat is not to work
if not advanced and number(flight.progress_until) ~= 0 and not holds(flight.progress_until) then
  return reply('refused', 'stalled')
end

-- renews
local renewed = {lease_until = now + lease_ms}
if advanced then renewed.progress, renewed.progress_until = progress, after(progress_ms) end
store(flight, renewed)
return reply('done', 0, watchers_now())
