-- One entry into the inbox of a session that need not exist.
local S, key, mark, wanted = KEYS[1], ARGV[4], ARGV[5], tonumber(ARGV[7])
local id = sub(S, #P + 4)
local I = P .. ':i:' .. id
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local known = call('HGET', I, key)
if known then
  local colon = find(known, ':', 1, true)
  if sub(known, colon + 5, colon + 4 + #mark) == mark then return 0 end
  return {'used'}
end
local number = tonumber(call('HGET', S, 'posts') or '0') + 1
if wanted ~= 0 and wanted ~= number then return {'outrun', fmt('%.0f', number)} end
local wall = clock(ARGV[3])
if call('EXISTS', S) == 0 then create(S, id, wall) end
call('HSET', S, 'posts', fmt('%.0f', number))
local value = fmt('%.0f', number) .. ':' .. ARGV[6]
call('HSET', I, key, value)
call('ZADD', P .. ':w:' .. id, number, key)
call('HINCRBY', S, 'bytes', #value)
if call('PTTL', S) > 0 then keep_for(id, nil) end
return 1
