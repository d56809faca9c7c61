-- What rebuilds a line at a step ("load"), or some rows of it ("slice"), at one instant.
local id, line, mode, lo, hi, with_refs = sub(KEYS[1], #P + 4), ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local R, A, X = P .. ':r:' .. id, P .. ':a:' .. id, P .. ':x:' .. id
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local s = call('HMGET', KEYS[1], 'reason', 'lines', 't:' .. line, 'long')
if s[1] and s[1] ~= '' then return {'gone', s[1]} end
if not s[2] or s[2] == '0' then return {'none'} end

local anchors, last = {}, tonumber(s[3] or '')
local prefix = fmt('anchor:%010.0f:', tonumber(line))
for _, member in ipairs(call('ZRANGEBYLEX', X, '[' .. prefix, '(' .. prefix .. ';')) do
  local from, to = match(member, '(%d+):(%d+)$')
  anchors[#anchors + 1] = {tonumber(from), tonumber(to), sub(member, 1, #member - 17)}
end
if not last then
  for _, anchor in ipairs(anchors) do last = math.max(last or 0, anchor[2]) end
end
if not last then return {'noline'} end

local at, from, base, refs = tonumber(hi), tonumber(lo), false, {}
if mode == 'load' then
  at = at or last
  local snapshot = call('ZREVRANGEBYLEX', X, '(' .. key_of('snapshot', line, at) .. ';',
    '[' .. key_of('snapshot', line, 0), 'LIMIT', 0, 1)[1]
  local best = -1
  if snapshot then
    best = tonumber(match(snapshot, '(%d+)$'))
    base = sub(snapshot, 1, #snapshot - 17)
  end
  for _, anchor in ipairs(anchors) do
    if anchor[2] <= at and anchor[2] >= best then best, base = anchor[2], anchor[3] end
  end
  if base then
    base = call('HGET', A, base)
    from = best + 1
    if with_refs == '1' then
      refs = cmsgpack.unpack(sub(base, 5, 4 + struct.unpack('>I4', base)))[5]
    end
  else
    from = tonumber(match(call('HGET', P .. ':l:' .. id, line) or '0', '^%d+'))
  end
end

local rows, steps, thin, reached = {}, {}, {}, base and from - 1 or -1
local to = math.min(at, last)
for first = from, to, 500 do
  local fields = {}
  for step = first, math.min(first + 499, to) do fields[#fields + 1] = fmt('%s:%.0f', line, step) end
  for n, value in ipairs(call('HMGET', R, unpack(fields))) do
    if value then
      local step = first + n - 1
      rows[#rows + 1], steps[#steps + 1], reached = value, step, step
      if head_end(value) == #value then
        local span = thin[#thin]
        if span and span[3] == step - 1 then span[3] = step else thin[#thin + 1] = {tonumber(line), step, step} end
      end
    end
  end
end
if mode == 'load' and reached ~= at then
  for _, anchor in ipairs(anchors) do
    if anchor[1] <= at and at < anchor[2] then return {'retained', at, anchor[1], anchor[2]} end
  end
  return {'nostep', at, last}
end

local wanted, keys = {}, {}
local long = tonumber(s[4] or '0')
for _, spans in ipairs({thin, refs}) do
  for _, span in ipairs(spans) do
    local members = call('ZRANGEBYLEX', X, '[' .. key_of('pack', span[1], math.max(0, span[2] - long + 1)),
      '(' .. key_of('pack', span[1], span[3]) .. ';')
    for _, member in ipairs(members) do
      if tonumber(match(member, '(%d+)$')) >= span[2] then wanted[sub(member, 1, #member - 17)] = true end
    end
  end
end
for key in pairs(wanted) do keys[#keys + 1] = key end
table.sort(keys)
for _, anchor in ipairs(anchors) do
  for _, span in ipairs(thin) do
    if span[2] <= anchor[2] and anchor[2] <= span[3] then keys[#keys + 1] = anchor[3] end
  end
end
local packs = {}
for n, key in ipairs(keys) do packs[n] = call('HGET', A, key) end
return {'rows', base, steps, rows, packs, last}
