-- heartbeat: the owner says that it is alive and what holds time back; an idle owner learns of a rollback here.
--
-- ARGV[6] state: current, quiet, lagging, asking or stopped   ARGV[7] the reason in words, '' if none
--
-- Returns {'OK', outbox length, number of open windows}, {'FENCED'} or {'MOVED'}.
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 121 1700000060000 120-1 quiet 'nothing new since offset 121'

local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark', 'state')
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end
local now = int(now_ms())
redis.call('HSET', SOURCE, 'seen', now, 'state', ARGV[6], 'reason', ARGV[7])
if source[4] ~= ARGV[6] then redis.call('HSET', SOURCE, 'since', now) end
return {'OK', redis.call('XLEN', OUTBOX), redis.call('ZCARD', DUE)}
