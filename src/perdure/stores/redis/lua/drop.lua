-- Delete a session and leave its tombstone. Large keys are taken apart by the server in the background.
local S, token, freed, op, reason, status, keep = KEYS[1], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local id = sub(S, #P + 4)
local meta = call('HMGET', P .. ':meta', 'id', 'fence', 'trimmed')
if meta[1] ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'holder', 'token', 'until', 'did', 'owner', 'status', 'created', 'seq', 'posts', 'floor')
if not s[6] then return {'none'} end
if s[4] == op then return 1 end
local wall, now = clock(ARGV[3])
local refused = refusal(token, freed, meta[2], s[1], s[2], s[3], wall, now)
if refused then return refused end
if s[8] and tonumber(s[8]) > tonumber(meta[3]) then call('HSET', P .. ':meta', 'trimmed', s[8]) end
call('ZREM', P .. ':ids', id)
call('ZREM', P .. ':owner:' .. s[5], id)
call('ZREM', P .. ':status:' .. s[6], id)
call('ZREM', P .. ':expiry', id)
call('ZADD', P .. ':ended', 0, id)
local W, I, bytes, waiting = P .. ':w:' .. id, P .. ':i:' .. id, 0, {}
if keep ~= '' then
  for _, key in ipairs(call('ZRANGE', W, 0, -1)) do
    waiting[#waiting + 1] = key
    waiting[#waiting + 1] = call('HGET', I, key)
    bytes = bytes + #waiting[#waiting]
  end
else
  call('UNLINK', W)
end
for _, part in ipairs({'r', 'l', 'a', 'x', 'i', 'b'}) do call('UNLINK', P .. ':' .. part .. ':' .. id) end
call('UNLINK', S)
call('HSET', S, 'owner', '', 'status', status, 'created', s[7], 'updated', wall, 'reason', reason,
  'token', s[2] or '0', 'posts', s[9] or '0', 'floor', s[8] or s[10] or '0', 'bytes', bytes, 'did', op)
in_pieces(waiting, 500, function(...) call('HSET', I, ...) end)
return 1
