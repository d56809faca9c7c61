-- What some sessions refer to; says where to go on ('' at the end).
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local found, after = {}, ''
local ids = call('ZRANGEBYLEX', P .. ':ids', ARGV[3], '+', 'LIMIT', 0, 100)
for _, id in ipairs(ids) do
  for _, refs in ipairs(call('HVALS', P .. ':b:' .. id)) do found[#found + 1] = refs end
end
if #ids == 100 then after = '(' .. ids[100] end
return {after, found}
