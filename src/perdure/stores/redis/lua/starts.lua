-- The first rows of the lines of a branch ("+name"), or of all ("-").
local id = sub(KEYS[1], #P + 4)
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local flat, lines, rows = call('HGETALL', P .. ':l:' .. id), {}, {}
for n = 1, #flat, 2 do
  local step, branch = match(flat[n + 1], '^(%d+):(.*)$')
  if ARGV[3] == '-' or ARGV[3] == '+' .. branch then lines[#lines + 1] = {tonumber(flat[n]), flat[n] .. ':' .. step} end
end
table.sort(lines, function(a, b) return a[1] < b[1] end)
for _, line in ipairs(lines) do
  local value = call('HGET', P .. ':r:' .. id, line[2])
  if value then rows[#rows + 1] = {line[2], value} end
end
return rows
