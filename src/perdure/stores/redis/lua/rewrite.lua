-- Maintenance of a session: all of it or nothing.
local S, token, op, change = KEYS[1], ARGV[4], ARGV[5], cmsgpack.unpack(ARGV[6])
local id = sub(S, #P + 4)
local R, A, X, B = P .. ':r:' .. id, P .. ':a:' .. id, P .. ':x:' .. id, P .. ':b:' .. id
local meta = call('HMGET', P .. ':meta', 'id', 'fence', 'trimmed')
if meta[1] ~= ARGV[2] then return {'other'} end
local s = call('HMGET', S, 'holder', 'token', 'until', 'did', 'reason', 'status', 'bytes', 'rows', 'long', 'gaps', 'base')
if not s[6] or (s[5] and s[5] ~= '' and token == '') then return 0 end
if s[4] == op then return 1 end
if token ~= '' then
  local refused = refusal(token, '', meta[2], s[1], s[2], s[3], 0, 0)
  if refused then return refused end
end
local discard, put, thin, drop, needs = change[1], change[2], change[3], change[4], change[5]
local thinned, freed = {}, 0
local fits = each_row(R, thin, function(field, value)
  local ends = value and head_end(value)
  if not value or ends == #value then return false end
  thinned[#thinned + 1] = field
  thinned[#thinned + 1] = sub(value, 1, ends)
  freed = freed + #value - ends
end)
if not fits then return 0 end
for _, span in ipairs(needs) do
  local line = fmt('%.0f', span[1])
  local last, first = call('HGET', S, 't:' .. line), call('HGET', P .. ':l:' .. id, line)
  -- Without gaps, a line has all rows between its first and its last.
  local whole = not s[10] and last and first and tonumber(match(first, '^%d+')) <= span[2] and span[3] <= tonumber(last)
  if not whole then
    for step = span[2], span[3] do
      if call('HEXISTS', R, fmt('%s:%.0f', line, step)) == 0 then return 0 end
    end
  end
end

local bytes, rows, long, trimmed = tonumber(s[7] or '0'), tonumber(s[8] or '0'), tonumber(s[9] or '0'), tonumber(meta[3])
local function remove(key)
  local member = call('ZRANGEBYLEX', X, '[' .. key .. ':', '(' .. key .. ';', 'LIMIT', 0, 1)[1]
  if not member then return end
  bytes = bytes - call('HSTRLEN', A, key)
  call('ZREM', X, member)
  call('HDEL', A, key)
  call('HDEL', B, 'a:' .. key)
end
for _, artifact in ipairs(discard) do remove(key_of(artifact[1], artifact[2], artifact[3])) end
for n, artifact in ipairs(put) do
  local key, value, refs = key_of(artifact[1], artifact[2], artifact[3]), ARGV[5 + 2 * n], ARGV[6 + 2 * n]
  remove(key)
  call('HSET', A, key, value)
  call('ZADD', X, 0, fmt('%s:%016.0f', key, artifact[4]))
  if refs ~= '' then call('HSET', B, 'a:' .. key, refs) end
  if artifact[1] == 'pack' then long = math.max(long, artifact[4] - artifact[3] + 1) end
  bytes = bytes + #value
end
in_pieces(thinned, 500, function(...) call('HSET', R, ...) end)
bytes = bytes - freed
for _, span in ipairs(drop) do
  local line = fmt('%.0f', span[1])
  local last = tonumber(call('HGET', S, 't:' .. line) or '')
  if last then
    local gone, named = {}, {}
    each_row(R, {{span[1], span[2], math.min(span[3], last)}}, function(field, value)
      if value then
        local number = match(value, '^%d+') or tonumber(match(value, '^%+(%d+)')) + tonumber(s[11])
        trimmed = math.max(trimmed, tonumber(number))
        bytes, rows = bytes - #value, rows - 1
        gone[#gone + 1], named[#named + 1] = field, 'r:' .. field
      end
    end)
    in_pieces(gone, 500, function(...) call('HDEL', R, ...) end)
    in_pieces(named, 500, function(...) call('HDEL', B, ...) end)
    if span[3] >= last then
      local first = tonumber(match(call('HGET', P .. ':l:' .. id, line) or '0', '^%d+'))
      local left = math.min(last, span[2] - 1)
      while left >= first and call('HEXISTS', R, fmt('%s:%.0f', line, left)) == 0 do left = left - 1 end
      if left >= first then call('HSET', S, 't:' .. line, left) else call('HDEL', S, 't:' .. line) end
    end
  end
end
if #drop > 0 then
  call('HSET', S, 'gaps', '1')
  call('HSET', P .. ':meta', 'trimmed', trimmed)
  for _, member in ipairs(call('ZRANGEBYLEX', X, '[snapshot:', '(snapshot;')) do
    local key = sub(member, 1, #member - 17)
    local value = call('HGET', A, key)
    local about = cmsgpack.unpack(sub(value, 5, 4 + struct.unpack('>I4', value)))
    local dangling, spans = false, about[5]
    spans[#spans + 1] = {about[2], about[3], about[4]}
    for _, one in ipairs(spans) do
      for _, span in ipairs(drop) do
        if one[1] == span[1] and one[2] <= span[3] and span[2] <= one[3] then dangling = true end
      end
    end
    if dangling then remove(key) end
  end
end
call('HSET', S, 'bytes', bytes, 'rows', rows, 'long', long, 'did', op)
local left = call('PTTL', S)
if left > 0 then keep_for(id, left) end
return 1
