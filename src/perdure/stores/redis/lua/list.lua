-- Sessions of an index, in order of id, after one: of each its id and what listings choose by. Looks at so many of
-- them at most, so as not to keep others waiting; says where to go on ('' at the end).
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local index, after, count = ARGV[3], ARGV[4], ARGV[5]
local found = {after}
local ids = call('ZRANGEBYLEX', index, after, '+', 'LIMIT', 0, count)
for _, id in ipairs(ids) do
  found[#found + 1] = {id, unpack(call('HMGET', P .. ':s:' .. id, 'owner', 'status', 'agent', 'error', 'label', 'updated'))}
end
found[1] = #ids == tonumber(count) and '(' .. ids[#ids] or ''
return found
