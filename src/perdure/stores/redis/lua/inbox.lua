-- Waiting entries in order of arrival; with a key ("+key") only that one.
local id, limit = sub(KEYS[1], #P + 4), tonumber(ARGV[3])
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
local W, I = P .. ':w:' .. id, P .. ':i:' .. id
local keys, found = {}, {}
if limit > 0 then
  if ARGV[4] == '-' then
    keys = call('ZRANGE', W, 0, limit - 1)
  elseif call('ZSCORE', W, sub(ARGV[4], 2)) then
    keys = {sub(ARGV[4], 2)}
  end
end
for n, key in ipairs(keys) do found[n] = {key, call('HGET', I, key)} end
return found
