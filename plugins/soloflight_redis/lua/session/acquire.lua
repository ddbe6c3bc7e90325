-- Acquire: the lock, or a place in the queue; or again what was asked before.
--
-- granted NUMBER WAITING | queued RANK RECHECK_MS | busy RETRY_MS WAITING

local tag, nonce, node, flight, lease_ms, ticket_ms, max_queue = unpack(ARGV)
local queue, holder = lock[QUEUE], lock[HOLDER]

-- the grant whose reply was lost
if holder and holder[NONCE] == nonce then
  holder[HOLDER_LAPSE] = now + lease_ms
  return done('granted', holder[HOLDER_NUMBER], #queue)
end

-- grant
if not is_held() and (not queue[1] or queue[1][NONCE] == nonce) then
  lock[NUMBER] = max(now * 1000, lock[NUMBER] + 1)
  lock[HOLDER] = {nonce, node, flight, now + lease_ms, lock[NUMBER]}
  table.remove(queue, 1)
  return done('granted', lock[NUMBER], #queue)
end

-- wait: a place in the queue, kept or taken. The holder hears of who comes new, and again from the first
local rank
for at, ticket in ipairs(queue) do
  if ticket[NONCE] == nonce then rank = at - 1 end
end
local look_ms = (holder and holder[HOLDER_LAPSE] or queue[1][LAPSE]) - now + 1
if not rank and #queue >= number(max_queue) then
  contest()
  return done('busy', look_ms, #queue)
end
local is_new = not rank
rank = rank or #queue
queue[rank + 1] = {nonce, node, now + ticket_ms}
if is_new or rank == 0 then contest() end
return done('queued', rank, min(look_ms, max(1, math.floor(ticket_ms / 3))))
