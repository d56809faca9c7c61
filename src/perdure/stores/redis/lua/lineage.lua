-- Called on each new connection: is the server's past still the one we know? After a promotion, or a restart of a
-- server that does not sync each write, its newest writes may be lost: that begins a new epoch, once.
local M, life, process, safe, promoted, replicas = P .. ':meta', ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local meta = call('HMGET', M, 'id', 'epoch', 'token', 'life', 'process', 'replicated')
if meta[1] ~= ARGV[2] then return {'other'} end
if replicas > 0 and not meta[6] then call('HSET', M, 'replicated', '1') end
if meta[4] == life then return meta[2] end
local lost
if not meta[4] then
  lost = false
elseif meta[5] == process then
  -- The same process under another name of replication: either it was a replica in between, or merely lost its last
  -- replica for so long that it forgot about it.
  lost = promoted == '1'
else
  lost = promoted == '1' or meta[6] or safe ~= '1'
end
call('HSET', M, 'life', life, 'process', process)
if not lost then return meta[2] end
call('HSET', M, 'epoch', ARGV[8], 'fence', meta[3], 'token', tonumber(meta[3]) + 4294967296)
return ARGV[8]
