-- advance: raises the watermark without ticks.
--
-- ARGV[6] the watermark wanted, ms
-- ARGV[7] grace in ms: time passes at the pace of Redis's clock on the partition's own time line, at most to
--         max_ts + (now - max_ts_at) - grace; '' for no such bound (the delivered watermark, the end of a run)
--
-- Returns {'OK', watermark, next_due}, {'FENCED'} or {'MOVED'}. A watermark never goes back.
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 121 1700000000000 120-1 1700000060000 2000

local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark', 'max_ts', 'max_ts_at')
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end

local now = now_ms()
local watermark = tonumber(ARGV[6])
if ARGV[7] ~= '' then
  if not source[4] then return {'OK', source[3] or '', next_due()} end
  watermark = math.min(watermark, source[4] + (now - source[5]) - ARGV[7])
end
if source[3] and watermark <= tonumber(source[3]) then return {'OK', source[3], next_due()} end
redis.call('HSET', SOURCE, 'watermark', int(watermark), 'seen', int(now))
return {'OK', int(watermark), next_due()}
