-- Release: give the lock back. Another's grant is never touched.
--
-- done DUPLICATE WATCHERS

local tag, fence_number, fence_nonce = unpack(ARGV)
if not is_held_by(fence_number, fence_nonce) then return done('done', 1, 0) end

lock[HOLDER] = false
return done('done', 0, 0)
