-- probe: runs every command of the other scripts on scratch keys of every family, so that a missing right is found
-- when a worker starts and not when the first window closes.
--
-- ARGV[1] namespace
--
-- The scratch symbol is '%probe': no symbol is written so, since '%' itself is encoded. Nothing is left behind.
-- Returns {'OK'} or {'DENIED', what was refused, the server's words}.
--
-- Example: EVALSHA … 0 tw:

local NAMESPACE = ARGV[1]
local HASHES = {'last:%probe', 'ohlc:%probe:1s:0', 'rules:%probe:opts', 'fired:%probe', 'source:%probe/0'}
local SORTED_SETS = {'rules:%probe:edge', 'rules:%probe:level:above', 'rules:%probe:level:below',
  'rules:%probe:level:equal', 'due:%probe/0', 'changed:%probe/0'}

local OUTBOX, GROUP = 'outbox:%probe/0', 'group:%probe'

local denied

local function run(command, name, words)
  if denied then return end
  local reply = redis.pcall(command, unpack(words))
  if type(reply) == 'table' and reply.err then denied = {'DENIED', command .. ' ' .. name, reply.err} end
end

local function try(command, name, ...)
  run(command, NAMESPACE .. name, {NAMESPACE .. name, ...})
end

local function each_key(visit)
  for _, names in ipairs({HASHES, SORTED_SETS, {OUTBOX, GROUP}}) do
    for _, name in ipairs(names) do visit(name) end
  end
end

-- First, since what a refusal left behind at an earlier start would be in the way of the next.
each_key(function(name) try('DEL', name) end)
for _, name in ipairs(HASHES) do
  try('HSET', name, 'field', '1')
  try('HGET', name, 'field')
  try('HMGET', name, 'field', 'other')
  try('HLEN', name)
  try('PEXPIRE', name, '1000')
  try('HDEL', name, 'field')
end
for _, name in ipairs(SORTED_SETS) do
  try('ZADD', name, '1', 'member')
  try('EXISTS', name)
  try('ZCARD', name)
  try('ZRANGE', name, '0', '0', 'WITHSCORES')
  try('ZRANGEBYSCORE', name, '-inf', '1', 'WITHSCORES', 'LIMIT', '0', '1')
  try('ZMSCORE', name, 'member')
  try('ZREM', name, 'member')
end
try('XADD', OUTBOX, '0-1', 'field', 'value')
run('XINFO', 'STREAM ' .. NAMESPACE .. OUTBOX, {'STREAM', NAMESPACE .. OUTBOX})
try('XLEN', OUTBOX)
try('XRANGE', OUTBOX, '-', '+', 'COUNT', '1')
try('XDEL', OUTBOX, '0-1')
try('XTRIM', OUTBOX, 'MINID', '0-1')
try('SET', GROUP, 'name')
try('GET', GROUP)
try('SADD', 'symbols', '%probe')
try('SCARD', 'symbols')
try('SREM', 'symbols', '%probe')
run('TIME', 'for the clock', {})
-- Also after a refusal.
each_key(function(name) redis.pcall('DEL', NAMESPACE .. name) end)
redis.pcall('SREM', NAMESPACE .. 'symbols', '%probe')
return denied or {'OK'}
