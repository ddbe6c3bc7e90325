-- The stored result of one attempt, if it is there and not larger than asked for.
--
-- result VALUE | result

local tag, number_asked, most_bytes = unpack(ARGV)

local numbers = call('HMGET', RECORD, 'answer_number', 'outcome_number')
local where = (numbers[1] == number_asked and ANSWER) or (numbers[2] == number_asked and OUTCOME)
if not where or call('STRLEN', where) > number(most_bytes) then return reply('result') end
return reply('result', call('GET', where))
