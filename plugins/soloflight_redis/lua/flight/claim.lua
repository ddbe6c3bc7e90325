-- Claim: the answer, a seat among the followers, or the owner's lease.
--
-- owned NUMBER FLIGHT ATTEMPT STATE | joined NUMBER FLIGHT OWNER STATE FRAMES DUE_MS [ENTRY …]
-- answered NUMBER FLIGHT SIZE AGE_MS TTL_MS KEPT [RESULT] | faulted NUMBER FLIGHT TTL_MS FAULT
-- poisoned NUMBER FLIGHT TTL_MS | wait NUMBER WAIT_MS | stale NUMBER | absent | mismatch

local tag, nonce, node, id, pending_ms, running_ms, first_byte_ms, deadline_ms, max_attempts, poison_ms, watch_ms,
  may_own, direct, follow, fresh_ms, payload, exhaustion, inline_bytes = unpack(ARGV)

local flight = load()
local state = standing(flight)
flight = flight or {}
local kept, told = holds(flight.answer_expires), holds(flight.outcome_until)
local named = flight.payload or ''

local function answered(of, age_ms, ttl_ms, is_kept, where)
  local found = reply(
    'answered', flight[of .. '_number'], flight[of .. '_flight'], flight[of .. '_size'], age_ms, ttl_ms, is_kept)
  -- A small result comes along; a replay then is one round trip.
  if call('STRLEN', where) <= number(inline_bytes) then found[#found + 1] = call('GET', where) end
  return found
end

local function replay()
  return answered('answer', now - flight.answer_sealed, flight.answer_expires - now, 1, ANSWER)
end

local function owned()
  return reply('owned', flight.number, flight.id, flight.attempt, flight.state)
end

-- A fresh attempt over whatever is there. Even a garbage record's number counts: numbers only rise.
local function attempt(flight_id, count, of_payload)
  if flight.seen then call('DEL', LOG) end
  if flight.answer_number and not kept then
    forget_answer(flight)
  end
  if flight.outcome_number and not told then
    forget_outcome(flight)
  end
  local runs = direct == '1'
  local fresh = {
    id = flight_id, state = runs and 'R' or 'P', owner = node, attempt = count,
    number = max(now * 1000, number(flight.number) + 1), nonce = nonce,
    lease_until = now + (runs and running_ms or pending_ms),
    progress_until = runs and after(first_byte_ms) or 0,
    deadline = now + deadline_ms,
  }
  if of_payload ~= '' then fresh.payload = of_payload end
  if flight.seen then -- over another attempt's fields
    fresh.frames, fresh.size, fresh.progress, fresh.retry_at, fresh.poisoned_until = 0, 0, 0, 0, 0
    fresh.payload = of_payload
  end
  store(flight, fresh)
  expire(RECORD, flight)
end

if state then
  -- followed: the attempt that this node follows has ended
  if told and flight.outcome_number == follow then
    local ttl_ms = flight.outcome_until - now
    if flight.outcome_fault ~= '' then
      return reply('faulted', follow, flight.outcome_flight, ttl_ms, flight.outcome_fault)
    end
    return answered('outcome', 0, ttl_ms, 0, OUTCOME)
  end
  if kept and flight.answer_number == follow then return replay() end

  -- mismatched: the Idempotency-Key names another payload
  if payload ~= '' and named ~= '' and payload ~= named and (OPEN[state] or kept) then
    return reply('mismatch')
  end

  -- replayed: an answer is kept, and as fresh as asked for
  if kept and (fresh_ms == '' or now - flight.answer_sealed <= number(fresh_ms)) then return replay() end
end

if state == 'P' or state == 'R' then
  -- owned again: the same claim, whose reply was lost
  if flight.nonce == nonce then return owned() end

  -- joined: the attempt has not lapsed
  local due = min(number(flight.lease_until), number(flight.deadline))
  if number(flight.progress_until) ~= 0 then due = min(due, number(flight.progress_until)) end
  if now <= due then
    if number(watch_ms) > 0 then
      drop_late_watchers()
      call('ZADD', WATCHERS, text(now + watch_ms), node)
      store(flight, {})
      expire(WATCHERS, flight)
      if node ~= flight.owner then ring(flight.owner) end
    end
    local joined = reply('joined', flight.number, flight.id, flight.owner, state, number(flight.frames), due - now + 1)
    -- A follower looks once it listens, to read what was published before. A short log comes along.
    if may_own == '0' and number(flight.frames) > 0 and number(flight.size) <= number(inline_bytes) then
      for _, entry in ipairs(call('LRANGE', LOG, 0, INLINE_ENTRIES - 1)) do joined[#joined + 1] = entry end
    end
    return joined
  end

  -- exhausted: the last attempt lapsed
  if number(flight.attempt) >= number(max_attempts) then
    finish(flight, 'X', {
      nonce = '', poisoned_until = after(poison_ms),
      outcome_number = flight.number, outcome_flight = flight.id, outcome_until = now + poison_ms, outcome_size = 0,
      outcome_nonce = '', outcome_fault = exhaustion,
    })
    call('DEL', WATCHERS, OUTCOME)
    expire(LOG, flight)
    tell('X', flight.number)
    return reply('faulted', flight.number, flight.id, number(poison_ms), exhaustion)
  end
end

-- waits: the retry is not due yet
if state == 'Q' and now < number(flight.retry_at) then
  return reply('wait', flight.number, flight.retry_at - now)
end

-- stale, takes over: lapsed, or the retry is due
if OPEN[state] then
  if may_own == '0' then return reply('stale', flight.number) end
  call('ZREM', WATCHERS, node)
  drop_late_watchers()
  attempt(flight.id, flight.attempt + 1, payload ~= '' and payload or named)
  expire(WATCHERS, flight)
  tell('T', flight.number)
  return owned()
end

-- poisoned: its attempts lost their owners once too often a short while ago
if state == 'X' and holds(flight.poisoned_until) then
  return reply('poisoned', flight.number, flight.id, flight.poisoned_until - now)
end

-- absent, begins: nothing stands in the way
if may_own == '0' then return reply('absent') end
if flight.seen then call('DEL', WATCHERS) end
attempt(id, 1, payload == '' and kept and named or payload)
return owned()
