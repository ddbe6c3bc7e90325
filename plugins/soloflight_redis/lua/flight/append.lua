-- Append: one batch of frames for followers on other nodes; renews as well.
-- The log's entry and the notice are the same text: "NUMBER INDEX\n" and the batch.
--
-- done DUPLICATE WATCHERS | gap FRAMES | refused WHY

local tag, fence_number, fence_nonce, index, lease_ms, progress, progress_ms, size, batch = unpack(ARGV)

local flight = load({'frames', 'size', 'progress', 'progress_until'})
local state = standing(flight)
if not state then return reply('refused', 'gone') end
if state ~= 'R' or not ours(flight) then return reply('refused', 'fenced') end

-- appended before
if number(index) <= number(flight.frames) then return reply('done', 1, watchers_now()) end
if now > number(flight.deadline) then return reply('refused', 'expired') end
if number(index) ~= number(flight.frames) + 1 then return reply('gap', number(flight.frames)) end

local advanced = number(progress) > number(flight.progress)
-- stalled
if not advanced and number(flight.progress_until) ~= 0 and not holds(flight.progress_until) then
  return reply('refused', 'stalled')
end

-- appends
local renewed = {lease_until = now + lease_ms, frames = index, size = number(flight.size) + size}
if advanced then renewed.progress, renewed.progress_until = progress, after(progress_ms) end
store(flight, renewed)
if number(index) == 1 then call('DEL', LOG) end -- one whose record was lost is no part of this
local entry = fence_number .. ' ' .. index .. '\n' .. batch
if call('RPUSH', LOG, entry) == 1 then expire(LOG, flight) end
tell('C', entry)
return reply('done', 0, watchers_now())
