-- Withdraw: take back a request, whatever became of it: a place in the queue, or a grant whose reply was lost.
--
-- done DUPLICATE WATCHERS

local tag, nonce = unpack(ARGV)
if lock[HOLDER] and lock[HOLDER][NONCE] == nonce then
  lock[HOLDER] = false
  return done('done', 0, 0)
end
local left = {}
for _, ticket in ipairs(lock[QUEUE]) do
  if ticket[NONCE] ~= nonce then left[#left + 1] = ticket end
end
local was_there = #left < #lock[QUEUE]
lock[QUEUE] = left
return done('done', was_there and 0 or 1, 0)
