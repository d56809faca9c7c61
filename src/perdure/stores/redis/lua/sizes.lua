-- Rows and bytes of some sessions, in order of id; says where to go on ('' at the end).
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local rows, bytes, after, known = 0, 0, '', 0
local ids = call('ZRANGEBYLEX', P .. ':ids', ARGV[3], '+', 'LIMIT', 0, 1000)
for _, id in ipairs(ids) do
  local s = call('HMGET', P .. ':s:' .. id, 'rows', 'bytes', 'status')
  if s[3] then known = known + 1 end
  rows, bytes = rows + tonumber(s[1] or '0'), bytes + tonumber(s[2] or '0')
end
if #ids == 1000 then after = '(' .. ids[1000] end
return {known, rows, bytes, after}
