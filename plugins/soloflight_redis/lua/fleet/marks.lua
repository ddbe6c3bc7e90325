-- Marks: how long ago each was made.
--
-- KEYS  the fleet's marks
-- marks NAME AGE_MS …

local found = reply('marks')
local all = call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  found[#found + 1] = all[at]
  found[#found + 1] = max(0, now - all[at + 1])
end
return found
