-- What every script begins with. In front of it stand a few lines that Python writes: now (the clock, in ms),
-- PUBLISH (or SPUBLISH), and constants.
--
-- ARGV 1 is the call's tag. It comes back as the first element of the reply, so that no reply is ever taken
-- for another call's.

local call, max, min = redis.call, math.max, math.min

local function reply(...) return {ARGV[1], ...} end

-- Numbers are doubles: exact to 2^53, but tostring would write 1.8e+15.
local function text(value) return string.format('%.0f', value) end
local function number(value) return tonumber(value or 0) end
