-- Put a session in place whose rows, artifacts, inbox and blobs were laid ready under another name.
local S, stage, op, about, maxlen = KEYS[1], ARGV[4], ARGV[5], cmsgpack.unpack(ARGV[6]), ARGV[7]
local id = sub(S, #P + 4)
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'lines', 'did', 'status', 'owner', 'holder', 'token', 'posts', 'bytes', 'due')
if s[2] == op then return 1 end
if s[1] and tonumber(s[1]) > 0 then
  local head = false
  for _, name in ipairs(call('HKEYS', S)) do
    if sub(name, 1, 2) == 'h:' and (not head or name < head) then head = name end
  end
  return {'there', head and sub(head, 3), head and call('HGET', S, head)}
end
local K, I = call('ZRANGE', stage .. 'k', 0, -1), P .. ':i:' .. id
-- Where the same key stands for two inputs one of them would be lost.
for _, key in ipairs(K) do
  local name = match(key, '^.%d+:(.*)$')
  local known = call('HGET', I, name)
  if known then
    local tail, at = call('HGET', stage .. 'i', name), find(known, ':', 1, true) + 5
    local length = string.byte(tail, 5)
    if sub(known, at, at + length) ~= sub(tail, 5, 5 + length) then return {'used', name} end
  end
end
local wall = clock(ARGV[3])
if not s[3] then
  create(S, id, wall)
  s[3], s[4] = 'idle', ''
end
local C, base, bytes = P .. ':changes', 0, tonumber(s[8] or '0') + about.bytes
local O = stage .. 'o'
local total = call('ZCARD', O)
for first = 0, total - 1, 100 do
  for n, change in ipairs(call('ZRANGE', O, first, first + 99)) do
    local seq = sub(call('XADD', C, 'MAXLEN', '~', maxlen, '0-*', 'session', id, unpack(cmsgpack.unpack(change))), 3)
    if first == 0 and n == 1 then base = tonumber(seq) end
    if first + n == total then call('HSET', S, 'seq', seq) end
  end
end
for _, part in ipairs({'r', 'l', 'a', 'x', 'b'}) do
  if call('EXISTS', stage .. part) == 1 then call('RENAME', stage .. part, P .. ':' .. part .. ':' .. id) end
end
local W, used = P .. ':w:' .. id, {}
for _, value in ipairs(call('HVALS', I)) do used[sub(value, 1, find(value, ':', 1, true) - 1)] = true end
local posts = tonumber(s[7] or '0')
for _, key in ipairs(K) do posts = math.max(posts, tonumber(match(key, '^.(%d+)'))) end
-- What was posted here meanwhile stays; what the dump has taken counts as taken. An entry keeps its number, unless it has
-- none or that was given here.
for _, key in ipairs(K) do
  local mark, number, name = match(key, '^(.)(%d+):(.*)$')
  local taken = mark == 't'
  local tail, known = call('HGET', stage .. 'i', name), call('HGET', I, name)
  if not known then
    if number == '0' or used[number] then
      posts = posts + 1
      number = fmt('%.0f', posts)
    end
    used[number] = true
    local value = number .. ':' .. tail
    call('HSET', I, name, value)
    bytes = bytes + #value
    if not taken then call('ZADD', W, number, name) end
  elseif taken then
    local length = 4 + struct.unpack('>I4', tail)
    local value = sub(known, 1, (head_end(known))) .. sub(tail, length + 1)
    call('HSET', I, name, value)
    bytes = bytes + #value - #known
    call('ZREM', W, name)
  end
end
call('UNLINK', stage .. 'k', stage .. 'i', O)
call('ZREM', P .. ':stages', stage)
call('ZREM', P .. ':owner:' .. s[4], id)
call('ZREM', P .. ':status:' .. s[3], id)
if about.reason == '' then
  call('ZREM', P .. ':ended', id)
  call('ZADD', P .. ':ids', 0, id)
  call('ZADD', P .. ':owner:' .. about.owner, 0, id)
  call('ZADD', P .. ':status:' .. about.status, 0, id)
else
  call('ZADD', P .. ':ended', 0, id)
  call('ZREM', P .. ':ids', id)
end
if about.expires ~= '' then call('ZADD', P .. ':expiry', about.expires, id) else call('ZREM', P .. ':expiry', id) end
-- Tokens of the other store may still be about: ours go on behind them.
local token = tonumber(call('HGET', P .. ':meta', 'token'))
if tonumber(about.token) > token then call('HSET', P .. ':meta', 'token', about.token) end
if not s[5] or s[5] == '' then
  if tonumber(about.token) > tonumber(s[6] or '0') then call('HSET', S, 'token', about.token) end
end
for n = 8, #ARGV, 2 do call('HSET', S, ARGV[n], ARGV[n + 1]) end
call('HSET', S, 'owner', about.owner, 'status', about.status, 'created', about.created, 'updated', about.updated,
  'expires', about.expires, 'due', about.expires, 'reason', about.reason, 'lines', about.lines, 'bytes', bytes,
  'agent', about.agent, 'error', about.error, 'label', about.label,
  'rows', total, 'posts', posts, 'long', about.long, 'gaps', '1', 'base', base, 'did', op)
if about.expires ~= '' and AT_REST[about.status] then keep_for(id, math.max(0, tonumber(about.expires) - wall) + MARGIN) end
return 1
