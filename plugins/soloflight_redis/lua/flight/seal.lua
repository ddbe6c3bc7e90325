-- Seal: the terminal write with a result, kept for its retention or only told to those who wait.
-- An empty result is one that can not be stored: the seal holds, its readers find it gone.
--
-- done DUPLICATE WATCHERS | refused WHY

local tag, fence_number, fence_nonce, retention_ms, grace_ms, size, result = unpack(ARGV)

local flight = load({'id', 'answer_number', 'answer_nonce', 'outcome_number', 'outcome_nonce', 'outcome_fault'})
local state = standing(flight)
if not state then return reply('refused', 'gone') end

-- sealed before: by this very attempt, whoever claimed the key since
if made(flight, 'answer') or (made(flight, 'outcome') and flight.outcome_fault == '') then return reply('done', 1, 0) end
if state ~= 'R' or not ours(flight) then return reply('refused', 'fenced') end

-- seals
local where
if number(retention_ms) > 0 then
  where = ANSWER
  finish(flight, 'D', {
    answer_number = flight.number, answer_nonce = flight.nonce, answer_flight = flight.id, answer_sealed = now,
    answer_expires = now + retention_ms, answer_size = size,
  })
else
  where = OUTCOME
  finish(flight, 'D', {
    outcome_number = flight.number, outcome_nonce = flight.nonce, outcome_flight = flight.id,
    outcome_until = now + grace_ms, outcome_size = size, outcome_fault = '',
  })
end
if result ~= '' then
  call('SET', where, result, 'PX', text(max(number(retention_ms), number(grace_ms)) + GARBAGE_MS))
else
  call('DEL', where)
end
call('DEL', LOG, WATCHERS)
tell('D', flight.number, ' ' .. size)
return reply('done', 0, 0)
