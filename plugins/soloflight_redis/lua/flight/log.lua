-- Published batches of one attempt behind an index: a page of about so many bytes.
--
-- log FRAMES ENTRY …

local tag, number_asked, index, page_bytes = unpack(ARGV)

local found = call('HMGET', RECORD, 'number', 'frames')
if found[1] ~= number_asked then return reply('log', 0) end

local page, bytes, from = reply('log', number(found[2])), 0, number(index)
repeat
  local entries = call('LRANGE', LOG, text(from), text(from + 15))
  for _, entry in ipairs(entries) do
    page[#page + 1] = entry
    bytes = bytes + #entry
  end
  from = from + #entries
until #entries < 16 or bytes >= number(page_bytes)
return page
