-- Purge: forget the kept answer, and only that.
--
-- purged WAS_THERE

local flight = load({})
if not flight then return reply('purged', 0) end

local was_there = holds(flight.answer_expires) and 1 or 0
forget_answer(flight)
if not standing(flight) then
  call('DEL', RECORD, WATCHERS, LOG, OUTCOME)
  return reply('purged', was_there)
end
store(flight, {})
return reply('purged', was_there)
