-- A new epoch: cursors expire, every lease ends, and tokens go on behind any that was ever given.
local M = P .. ':meta'
local meta = call('HMGET', M, 'id', 'epoch', 'token')
if meta[1] ~= ARGV[2] then return {'other'} end
if meta[2] == ARGV[3] then return 1 end
call('HSET', M, 'epoch', ARGV[3], 'fence', meta[3], 'token', tonumber(meta[3]) + 4294967296)
return 1
