-- Entries of the stream after a number whose rows are still there; looks at so many at most.
-- Answers: epoch, newest number ever, newest one that is gone, the last one looked at, whether that was all, entries.
local C, after, limit = P .. ':changes', ARGV[3], tonumber(ARGV[4])
local meta = call('HMGET', P .. ':meta', 'id', 'epoch', 'trimmed')
if meta[1] ~= ARGV[2] then return {'other'} end
local newest, trimmed = 0, tonumber(meta[3])
if call('EXISTS', C) == 1 then
  local info, first = call('XINFO', 'STREAM', C), call('XRANGE', C, '-', '+', 'COUNT', 1)[1]
  for n = 1, #info, 2 do
    if info[n] == 'last-generated-id' then newest = tonumber(sub(info[n + 1], 3)) end
  end
  -- What is before the first entry was cut off; with no entry left, all of it was.
  trimmed = math.max(trimmed, first and tonumber(sub(first[1], 3)) - 1 or newest)
end
local found, looked, reached, all, floors = {}, 0, after, 1, {}
while limit > 0 do
  local entries = call('XRANGE', C, '(0-' .. reached, '+', 'COUNT', math.min(limit - #found, 500))
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    reached = sub(entry[1], 3)
    local about = entry[2]
    local id = about[2]
    -- What came before a session was dropped belongs to an earlier life of it.
    if not floors[id] then floors[id] = tonumber(call('HGET', P .. ':s:' .. id, 'floor') or '0') end
    if tonumber(reached) > floors[id] and call('HEXISTS', P .. ':r:' .. id, about[6] .. ':' .. about[8]) == 1 then
      found[#found + 1] = about
    end
  end
  looked = looked + #entries
  if #found == limit then break end
  if looked >= 1000 then
    all = 0
    break
  end
end
return {meta[2], newest, trimmed, reached, all, found}
