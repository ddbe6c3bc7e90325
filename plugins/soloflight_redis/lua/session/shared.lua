-- What every script of a session lock begins with, behind common.lua.
--
-- KEYS  the lock's record: {number, seen, holder, queue} in MessagePack;
--       holder {nonce, node, flight, lapse, number} or false, queue {{nonce, node, lapse}, …} in the order of arrival
--
-- Rule 1: core.session is the law; the words in the comments are its functions.
-- Rule 2: a lapse holds while now <= lapse. Whose ticket has lapsed is nobody; whose hold has lapsed gives way to who waits.
-- Rule 3: a record is written whole, and only if it has changed.

local LOCK = KEYS[1]
local stored = call('GET', LOCK)
local lock = stored and cmsgpack.unpack(stored) or {0, now, false, {}}
local NUMBER, SEEN, HOLDER, QUEUE = 1, 2, 3, 4
local NONCE, NODE, LAPSE = 1, 2, 3
local HOLDER_FLIGHT, HOLDER_LAPSE, HOLDER_NUMBER = 3, 4, 5

-- The moment after which the record means nothing any more.
local function collect_at()
  local last = lock[SEEN]
  for _, ticket in ipairs(lock[QUEUE]) do last = max(last, ticket[LAPSE]) end
  if lock[HOLDER] then last = max(last, lock[HOLDER][HOLDER_LAPSE]) end
  return last + SESSION_REMEMBERED_MS
end

-- anchored: the clock has stepped back, and every time moves back with it
local back = lock[SEEN] - now
if back > 0 then
  lock[SEEN] = now
  if lock[HOLDER] then lock[HOLDER][HOLDER_LAPSE] = max(1, lock[HOLDER][HOLDER_LAPSE] - back) end
  for _, ticket in ipairs(lock[QUEUE]) do ticket[LAPSE] = max(1, ticket[LAPSE] - back) end
end
local unchanged = stored and cmsgpack.pack(lock)
if now > collect_at() then lock = {lock[NUMBER], now, false, {}} end

local before = cmsgpack.pack(lock)
local was_held, was_first = lock[HOLDER] and true, lock[QUEUE][1] and lock[QUEUE][1][NONCE]

local function is_held() return lock[HOLDER] and now <= lock[HOLDER][HOLDER_LAPSE] end
local function is_held_by(attempt_number, nonce)
  return lock[HOLDER] and text(lock[HOLDER][HOLDER_NUMBER]) == attempt_number and lock[HOLDER][NONCE] == nonce
end

-- settled: see rule 2
local live = {}
for _, ticket in ipairs(lock[QUEUE]) do
  if now <= ticket[LAPSE] then live[#live + 1] = ticket end
end
lock[QUEUE] = live
if #live > 0 and not is_held() then lock[HOLDER] = false end

local notices = {}
local function tell(node, kind, nonce, waiting)
  notices[#notices + 1] = {node, 's' .. kind .. ' ' .. nonce .. ' ' .. (waiting or 0) .. ' '}
end

-- To the holder: somebody asks for the lock.
local function contest()
  if lock[HOLDER] then tell(lock[HOLDER][NODE], 'c', lock[HOLDER][NONCE], #lock[QUEUE]) end
end

-- Write the record if it has changed, wake who came to be the first at a free lock, and tell whom there is to tell.
local function done(...)
  if cmsgpack.pack(lock) == before then
    if unchanged and unchanged ~= stored then call('SET', LOCK, unchanged, 'KEEPTTL') end
  else
    local first = lock[QUEUE][1]
    if first and not lock[HOLDER] and (was_held or was_first ~= first[NONCE]) then tell(first[NODE], 't', first[NONCE]) end
    lock[SEEN] = now
    call('SET', LOCK, cmsgpack.pack(lock), 'PX', text(collect_at() - now + GARBAGE_MS))
  end
  local prefix, key = string.match(LOCK, '^([^{]*){(.*)}:session$')
  for _, notice in ipairs(notices) do call('PUBLISH', prefix .. 'node:' .. notice[1], notice[2] .. key) end
  return reply(...)
end
