-- Mark: remember this moment under a name.
--
-- KEYS  the fleet's marks
-- marked

local tag, name, kept_ms = unpack(ARGV)
call('HSET', KEYS[1], name, text(now))
call('PEXPIRE', KEYS[1], kept_ms)
return reply('marked')
