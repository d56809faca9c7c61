-- Extend a lease that is still the current one.
local S, token, span = KEYS[1], ARGV[4], tonumber(ARGV[5])
local meta = call('HMGET', P .. ':meta', 'id', 'fence')
if meta[1] ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'holder', 'token', 'until')
local wall, now = clock(ARGV[3])
if refusal(token, '', meta[2], s[1], s[2], s[3], wall, now) then return 0 end
call('HSET', S, 'until', now + span, 'span', span)
return 1
