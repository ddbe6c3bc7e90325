-- What every script of a flight begins with, behind common.lua.
--
-- KEYS  record, watchers, log, answer, outcome: everything of one flight, in one slot by the hash tag
--
-- Rule 1: a time holds while now <= time. A field that is not there stands for 0 or for the empty text.
-- Rule 2: whatever is executed twice answers twice the same, and is done once.
-- Rule 3: a key's TTL ends only what means nothing any more. It is never a sign of death.
-- Rule 4: core.ledger is the law; the words in the comments are its clauses.

local RECORD, WATCHERS, LOG, ANSWER, OUTCOME = unpack(KEYS)

local OPEN = {P = true, R = true, Q = true}
local STANDING = {
  'seen', 'state', 'number', 'nonce', 'deadline', 'retry_at', 'poisoned_until', 'answer_expires', 'outcome_until',
}
local TIMES = {
  'lease_until', 'progress_until', 'deadline', 'retry_at', 'poisoned_until', 'answer_sealed', 'answer_expires',
  'outcome_until',
}

local function holds(time)
  time = number(time)
  return time ~= 0 and now <= time
end

-- The clock has stepped back: every time of the record moves back with it.
local function anchor(step)
  local times, moved = call('HMGET', RECORD, unpack(TIMES)), {'seen', text(now)}
  for at, name in ipairs(TIMES) do
    local time = number(times[at])
    if time ~= 0 then
      moved[#moved + 1] = name
      moved[#moved + 1] = text(max(1, time - step))
    end
  end
  call('HSET', RECORD, unpack(moved))
  local watchers = call('ZRANGE', WATCHERS, 0, -1, 'WITHSCORES')
  for at = 1, #watchers, 2 do
    call('ZADD', WATCHERS, text(max(1, watchers[at + 1] - step)), watchers[at])
  end
end

local function read(names)
  local flight = {}
  if names then
    local values = call('HMGET', RECORD, unpack(names))
    for at, name in ipairs(names) do flight[name] = values[at] end
  else
    local all = call('HGETALL', RECORD)
    for at = 1, #all, 2 do flight[all[at]] = all[at + 1] end
  end
  return flight
end

-- The record, re-anchored: the fields that say how it stands and the named ones, or all. nil: there is none.
local function load(names)
  if names then
    for _, name in ipairs(STANDING) do names[#names + 1] = name end
  end
  local flight = read(names)
  if not flight.seen then return nil end
  local step = number(flight.seen) - now
  if step > 0 then
    anchor(step)
    flight = read(names)
  end
  return flight
end

-- The moment after which the record means nothing any more.
local function collect_at(flight)
  local last = max(number(flight.poisoned_until), number(flight.answer_expires), number(flight.outcome_until))
  if flight.state == 'P' or flight.state == 'R' then return max(last, flight.deadline + REMEMBERED_MS) end
  if flight.state == 'Q' then return max(last, flight.retry_at + REMEMBERED_MS) end
  return last
end

-- The state of the record; nil where there is none, or only garbage.
local function standing(flight)
  return flight and now <= collect_at(flight) and flight.state or nil
end

-- The fence: ARGV 2 and 3 of every operation of an owner.
local function ours(flight)
  return flight.number == ARGV[2] and flight.nonce == ARGV[3]
end

-- Whether an answer or an outcome is the work of the attempt with this fence, in both parts.
local function made(flight, which)
  return flight[which .. '_number'] == ARGV[2] and flight[which .. '_nonce'] == ARGV[3]
end

-- Write these fields to the record; `flight` has them as well.
local function store(flight, fields)
  local flat = {'seen', text(now)}
  for name, value in pairs(fields) do
    if type(value) == 'number' then value = text(value) end
    flight[name] = value
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  call('HSET', RECORD, unpack(flat))
end

-- Let Redis drop a key when the record is garbage.
local function expire(key, flight)
  call('PEXPIRE', key, text(collect_at(flight) - now + GARBAGE_MS))
end

-- The attempt is over: no bounds, no watchers. The fence stays: it tells what is sent again.
local function finish(flight, state, fields)
  fields.state, fields.lease_until, fields.progress_until, fields.deadline = state, 0, 0, 0
  fields.retry_at = fields.retry_at or 0
  store(flight, fields)
  expire(RECORD, flight)
end

local function forget_answer(flight)
  call('HDEL', RECORD, 'answer_number', 'answer_nonce', 'answer_flight', 'answer_sealed', 'answer_expires', 'answer_size')
  call('DEL', ANSWER)
  flight.answer_expires = nil
end

local function forget_outcome(flight)
  call(
    'HDEL', RECORD,
    'outcome_number', 'outcome_nonce', 'outcome_flight', 'outcome_until', 'outcome_size', 'outcome_fault')
  call('DEL', OUTCOME)
  flight.outcome_until = nil
end

-- A time from now, where a duration is given; 0 is none.
local function after(duration_ms)
  duration_ms = number(duration_ms)
  return duration_ms > 0 and now + duration_ms or 0
end

local function watchers_now() return call('ZCOUNT', WATCHERS, text(now), '+inf') end
local function drop_late_watchers() return call('ZREMRANGEBYSCORE', WATCHERS, '-inf', '(' .. text(now)) end

-- Wake everybody who listens to the key: "PREFIX{KEY}:record" has its notices at "PREFIX{KEY}:notices".
local function tell(kind, attempt_number, rest)
  call(PUBLISH, string.sub(RECORD, 1, -7) .. 'notices', kind .. ' ' .. attempt_number .. (rest or ''))
end

-- Wake the owner's node: somebody elsewhere wants this key's flight live.
local function ring(owner)
  local prefix, key = string.match(RECORD, '^([^{]*){(.*)}:record$')
  call('PUBLISH', prefix .. 'node:' .. owner, 'r' .. key)
end
