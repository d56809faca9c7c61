-- Sessions by id, each with all its fields and the number of waiting entries; first what judges their leases.
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local wall, now = clock(ARGV[3])
local found = {{wall, now, call('HGET', P .. ':meta', 'fence') or '0'}}
for n = 4, #ARGV do
  local id = ARGV[n]
  local fields = call('HGETALL', P .. ':s:' .. id)
  if #fields > 0 then found[#found + 1] = {id, fields, call('ZCARD', P .. ':w:' .. id)} end
end
return found
