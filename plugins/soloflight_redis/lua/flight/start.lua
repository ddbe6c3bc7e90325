-- Start: PENDING to RUNNING, the upstream is about to be called.
--
-- done DUPLICATE WATCHERS | refused WHY

local tag, fence_number, fence_nonce, lease_ms, first_byte_ms = unpack(ARGV)

local flight = load({})
local state = standing(flight)
if not state then return reply('refused', 'gone') end
if (state ~= 'P' and state ~= 'R') or not ours(flight) then return reply('refused', 'fenced') end

-- started before
if state == 'R' then return reply('done', 1, 0) end
if now > number(flight.deadline) then return reply('refused', 'expired') end

-- starts
store(flight, {state = 'R', lease_until = now + lease_ms, progress_until = after(first_byte_ms)})
tell('S', flight.number)
return reply('done', 0, 0)
