-- Hold: extend the holder's lease; and, if asked to, tell the first who waits that it does not give way.
--
-- held WAITING | refused fenced

local tag, fence_number, fence_nonce, lease_ms, keep = unpack(ARGV)
if not is_held_by(fence_number, fence_nonce) then return done('refused', 'fenced') end

lock[HOLDER][HOLDER_LAPSE] = now + lease_ms
local first = lock[QUEUE][1]
if keep == '1' and first then tell(first[NODE], 'k', first[NONCE]) end
return done('held', #lock[QUEUE])
