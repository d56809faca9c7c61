-- One commit. Everything is checked before the first write: a script that fails in the middle is not undone.
local S, given, branch, line, step, mark = KEYS[1], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local token, owner, status, ttl, refs = ARGV[9], ARGV[11], ARGV[12], ARGV[15], ARGV[18]
local agent, problem, label = ARGV[21], ARGV[22], ARGV[23]
local id = sub(S, #P + 4)
local R, place = P .. ':r:' .. id, line .. ':' .. step

local meta = call('HMGET', P .. ':meta', 'id', 'fence')
if meta[1] ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'h:' .. branch, 'holder', 'token', 'until', 'span', 'reason', 'lines', 'owner', 'status',
  'due', 'rows', 'bytes', 't:' .. line, 'error', 'h:main', 'label')
local head = s[1]
local before = head and match(head, '^%d+:%d+:(.*)$')
local same
if ARGV[8] == '-' then same = not head else same = before == sub(ARGV[8], 2) end

local function landed()
  local there = call('HGET', R, place)
  if not there then return nil end
  local colon = find(there, ':', 1, true)
  local known = sub(there, colon + 5, colon + 4 + #mark)
  if known == mark then return 1 end
  local length = string.byte(mark) + 1
  if sub(known, 1, length) == sub(mark, 1, length) then return {'digest'} end
  return {'taken', head}
end

-- A commit whose own parent is the head has not landed; any other may have, and that comes first.
if not same then
  local known = landed()
  if known and (known == 1 or known[1] == 'digest') then return known end
end
local wall, now = clock(given)
local refused = refusal(token, ARGV[20], meta[2], s[2], s[3], s[4], wall, now)
if refused then return refused end
if not same then return {'moved', head} end
local lines, last = tonumber(s[7] or '0'), tonumber(s[13] or '-1')
local number = tonumber(step)
-- Past the end of its line no place is taken.
if number <= last and call('HEXISTS', R, place) == 1 then return landed() end
if ARGV[10] == '1' and tonumber(line) < lines then return {'taken', head} end
local W, I = P .. ':w:' .. id, P .. ':i:' .. id
if #ARGV > 23 then
  local seen = {}
  for n = 24, #ARGV do
    if seen[ARGV[n]] or not call('ZSCORE', W, ARGV[n]) then return {'waiting', ARGV[n], head} end
    seen[ARGV[n]] = true
  end
end

local seq = sub(call('XADD', P .. ':changes', 'MAXLEN', '~', ARGV[19], '0-*', 'session', id, 'branch', branch,
  'line', line, 'step', step, 'id', ARGV[16], 'kind', ARGV[13], 'status', status, 'at', ARGV[14]), 3)
local value = seq .. ':' .. ARGV[17]
call('HSET', R, place, value)
if not s[9] then
  create(S, id, wall)
  s[8], s[9] = '', 'idle'
end
local bytes = tonumber(s[12] or '0') + #value
for n = 24, #ARGV do
  local entry = call('HGET', I, ARGV[n])
  local kept = sub(entry, 1, (head_end(entry))) .. sub(mark, 2, 1 + string.byte(mark))
  bytes = bytes + #kept - #entry
  call('HSET', I, ARGV[n], kept)
  call('ZREM', W, ARGV[n])
end
local set = {'h:' .. branch, place .. ':' .. sub(mark, 2, 1 + string.byte(mark)), 'updated', wall, 'seq', seq,
  'rows', tonumber(s[11] or '0') + 1, 'bytes', bytes}
local function put(name, new)
  set[#set + 1] = name
  set[#set + 1] = new
end
if last < number then put('t:' .. line, step) end
if last >= 0 and number ~= last + 1 then put('gaps', '1') end
if tonumber(line) >= lines then put('lines', tonumber(line) + 1) end
if lines == 0 or (s[6] and s[6] ~= '') then
  put('created', wall)
  put('reason', '')
  call('ZREM', P .. ':ended', id)
  call('ZADD', P .. ':ids', 0, id)
  call('ZADD', P .. ':owner:' .. s[8], 0, id)
  call('ZADD', P .. ':status:' .. s[9], 0, id)
end
if s[8] ~= owner then
  put('owner', owner)
  call('ZREM', P .. ':owner:' .. s[8], id)
  call('ZADD', P .. ':owner:' .. owner, 0, id)
end
-- Where a session stands is what "main" says; only while there is none, any branch does.
local stands = s[9]
if branch == 'main' or not s[15] then
  stands = status
  if s[9] ~= status then
    put('status', status)
    call('ZREM', P .. ':status:' .. s[9], id)
    call('ZADD', P .. ':status:' .. status, 0, id)
  end
  if agent ~= '' then put('agent', agent) end
  if (s[14] or '') ~= problem then put('error', problem) end
  if (s[16] or '') ~= label then put('label', label) end
end
local due, kept = s[10], nil
if ttl == '' then
  put('expires', '')
  if due and due ~= '' then
    put('due', '')
    call('ZREM', P .. ':expiry', id)
    keep_for(id, nil)
  end
else
  -- The index holds a time at or before the true one, so that not every commit has to write it.
  local span = tonumber(ttl) * 1000
  local expires = wall + span
  put('expires', expires)
  due = tonumber(due or '')
  if not due or expires < due or expires - due > span / 32 then
    put('due', expires)
    call('ZADD', P .. ':expiry', expires, id)
  end
  kept = span * 33 / 32 + MARGIN
end
if token ~= '' then put('until', now + tonumber(s[5])) end
call('HSET', S, unpack(set))
if ARGV[10] == '1' then call('HSET', P .. ':l:' .. id, line, step .. ':' .. branch) end
if refs ~= '' then call('HSET', P .. ':b:' .. id, 'r:' .. place, refs) end
-- Every time: a key may be new, what had waited may be taken, and a call may have begun or be settled.
if kept then keep_for(id, AT_REST[stands] and AT_REST[status] and kept or nil) end
return 0
