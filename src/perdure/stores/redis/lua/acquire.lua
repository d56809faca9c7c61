-- Take the lease. The same call sent again (its answer was lost) gets the same lease.
local S, holder, span, freed, op = KEYS[1], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local id = sub(S, #P + 4)
local meta = call('HMGET', P .. ':meta', 'id', 'fence')
if meta[1] ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'holder', 'token', 'until', 'op', 'status')
local wall, now = clock(ARGV[3])
if s[4] == op then return {'held', s[2], wall} end
local refused = refusal('', freed, meta[2], s[1], s[2], s[3], wall, now)
if refused then return refused end
if not s[5] then create(S, id, wall) end
local token = fmt('%.0f', call('HINCRBY', P .. ':meta', 'token', 1))
call('HSET', S, 'holder', holder, 'token', token, 'until', now + span, 'span', span, 'op', op)
return {'held', token, wall}
