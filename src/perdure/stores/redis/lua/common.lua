-- Shared by all scripts of the store; put in front of each. Everything of a session hangs off its id, see docs.
local call, sub, find, match, fmt = redis.call, string.sub, string.find, string.match, string.format
local P = ARGV[1]

-- The store's time: the server's own, unless a test's clock stands in for it. Wall time, then the time of leases.
local function clock(given)
  if given ~= '' then
    local wall, lease = match(given, '^(%d+):(%d+)$')
    return tonumber(wall), tonumber(lease)
  end
  local time = call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  return now, now
end

-- Why a writer may not write; nil when it may. What fences is the token: a lease that has run out counts for its
-- holder until somebody takes it. Tokens up to the fence ended with an earlier epoch. "freed" is the token of a
-- holder that the caller knows to be dead.
local function refusal(token, freed, fence, holder, current, ends, wall, now)
  local alive = holder and holder ~= '' and tonumber(current) > tonumber(fence or '0')
  if token ~= '' then
    if alive and current == token then return nil end
    return {'lost'}
  end
  if alive and current ~= freed and tonumber(ends) > now then
    return {'busy', holder, current, tonumber(ends) - now, wall}
  end
  return nil
end

-- Make a session known that nobody has heard of.
local function create(S, id, wall)
  call('HSET', S, 'owner', '', 'status', 'idle', 'created', wall, 'updated', wall)
  call('ZADD', P .. ':ids', 0, id)
  call('ZADD', P .. ':owner:', 0, id)
  call('ZADD', P .. ':status:idle', 0, id)
end

-- So many ms after its time has run out, Redis itself deletes a session that nobody has swept or opened since.
local MARGIN = 691200000

-- Where no call of a session is under way or in doubt. Elsewhere Redis deletes nothing: only a sweep can tell.
local AT_REST = {idle = true, sleeping = true, closed = true}

-- How long the keys of a session are kept, in ms from now; nil: for ever. One for which an input waits is.
local function keep_for(id, ms)
  if ms and call('ZCARD', P .. ':w:' .. id) > 0 then ms = nil end
  for _, part in ipairs({'s', 'r', 'l', 'a', 'x', 'i', 'w', 'b'}) do
    local key = P .. ':' .. part .. ':' .. id
    if ms then call('PEXPIRE', key, fmt('%.0f', ms)) else call('PERSIST', key) end
  end
end

-- A stored row is "<number of its change>:<length of its head><head><the rest>"; a thin one has no rest.
local function head_end(value)
  local colon = find(value, ':', 1, true)
  return colon + 4 + struct.unpack('>I4', value, colon + 1), colon
end

local function key_of(kind, line, lo)
  return fmt('%s:%010.0f:%016.0f', kind, line, lo)
end

-- Visit the rows of spans, some hundred at a time: each with its field and its value (false when it is not there).
-- Stops, and answers false, when a visit does.
local function each_row(R, spans, visit)
  for _, span in ipairs(spans) do
    for first = span[2], span[3], 500 do
      local fields = {}
      for step = first, math.min(first + 499, span[3]) do fields[#fields + 1] = fmt('%.0f:%.0f', span[1], step) end
      for n, value in ipairs(call('HMGET', R, unpack(fields))) do
        if visit(fields[n], value) == false then return false end
      end
    end
  end
  return true
end

local function in_pieces(list, size, visit)
  for first = 1, #list, size do visit(unpack(list, first, math.min(first + size - 1, #list))) end
end
