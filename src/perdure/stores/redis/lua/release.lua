-- Give a lease back if it is still the current one.
if call('HGET', P .. ':meta', 'id') ~= ARGV[2] then return {'other'} end
if call('HGET', KEYS[1], 'token') == ARGV[3] then
  call('HSET', KEYS[1], 'holder', '', 'until', '0', 'span', '0', 'op', '')
end
return 1
