-- Fail: the terminal write with a fault. Proven unprocessed, it may be tried again after the backoff.
--
-- retrying DUPLICATE | done DUPLICATE WATCHERS | refused WHY

local tag, fence_number, fence_nonce, retry, backoff_ms, max_attempts, grace_ms, fault = unpack(ARGV)

local flight = load({'id', 'attempt', 'outcome_number', 'outcome_nonce', 'outcome_fault'})
local state = standing(flight)
if not state then return reply('refused', 'gone') end

-- failed before: by this very attempt, whoever claimed the key since
if made(flight, 'outcome') and flight.outcome_fault ~= '' then return reply('done', 1, 0) end
if not OPEN[state] or not ours(flight) then return reply('refused', 'fenced') end

-- retried before
if state == 'Q' then return reply('retrying', 1) end

-- retries
if retry == '1' and number(flight.attempt) < number(max_attempts) then
  finish(flight, 'Q', {retry_at = now + backoff_ms})
  drop_late_watchers()
  expire(WATCHERS, flight)
  call('DEL', LOG)
  tell('Q', flight.number)
  return reply('retrying', 0)
end

-- fails: told to those who wait, forgotten for newcomers; an answer that is kept stays
finish(flight, 'X', {
  outcome_number = flight.number, outcome_nonce = flight.nonce, outcome_flight = flight.id,
  outcome_until = now + grace_ms, outcome_size = 0, outcome_fault = fault,
})
call('DEL', WATCHERS, OUTCOME)
expire(LOG, flight)
tell('X', flight.number)
return reply('done', 0, 0)
