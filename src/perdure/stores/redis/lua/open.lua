-- Make the store when it is not there yet; say what it is.
local M = P .. ':meta'
if call('EXISTS', M) == 0 then
  call('HSET', M, 'format', '1', 'id', ARGV[2], 'epoch', ARGV[3], 'token', '0', 'fence', '0', 'trimmed', '0')
end
return call('HMGET', M, 'format', 'id')
