-- Ids of sessions in an index, in order, after an id, that have this owner and status and had expired by then.
-- Looks at so many of them at most, so as not to keep others waiting; says where to go on ('' at the end).
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local index, after, limit, owner, status, expired = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local found, looked = {}, 0
while looked < 2000 do
  local ids = call('ZRANGEBYLEX', index, after, '+', 'LIMIT', 0, 200)
  for _, id in ipairs(ids) do
    looked = looked + 1
    after = '(' .. id
    local s = call('HMGET', P .. ':s:' .. id, 'owner', 'status', 'expires')
    if (owner == '-' or '+' .. s[1] == owner) and (status == '-' or '+' .. s[2] == status)
      and (expired == '' or (tonumber(s[3] or '') and tonumber(s[3]) <= tonumber(expired))) then
      found[#found + 1] = id
      if #found == limit then return {after, found} end
    end
  end
  if #ids < 200 then return {'', found} end
end
return {after, found}
