-- Abandon: nobody on this node listens any more. Deletes and publishes only, so a full Redis takes it, too.
--
-- dropped | kept WATCHERS | refused WHY

local tag, fence_number, fence_nonce, node, force = unpack(ARGV)

local flight = load({'outcome_number', 'outcome_nonce'})
local state = standing(flight)

-- nothing to drop: as good as dropped
if not state then return reply('dropped') end
if state == 'D' or not ours(flight) then return reply('refused', 'fenced') end

-- dropped before
if state == 'X' then
  if made(flight, 'outcome') then return reply('refused', 'fenced') end
  return reply('dropped')
end

-- keeps: other nodes watch
if force == '0' and watchers_now() > (holds(call('ZSCORE', WATCHERS, node)) and 1 or 0) then
  local left = call('ZREM', WATCHERS, node) + drop_late_watchers()
  if left > 0 then store(flight, {}) end
  return reply('kept', watchers_now())
end

-- drops: nobody can join it any more; an older answer stays
if holds(flight.answer_expires) or holds(flight.outcome_until) then
  call('DEL', WATCHERS, LOG)
  finish(flight, 'X', {})
else
  call('DEL', RECORD, WATCHERS, LOG, ANSWER, OUTCOME)
end
tell('A', flight.number)
return reply('dropped')
