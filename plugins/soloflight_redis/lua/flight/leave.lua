-- Leave: a following node has no listener left for the attempt it follows.
--
-- done DUPLICATE WATCHERS

local tag, node, attempt_number = unpack(ARGV)

local flight = load({})
if OPEN[standing(flight)] and flight.number == attempt_number and call('ZREM', WATCHERS, node) == 1 then
  store(flight, {})
  return reply('done', 0, 0)
end
return reply('done', 1, 0)
