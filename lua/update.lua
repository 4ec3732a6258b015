-- update: sends open candles as they stand, those that changed since they were last sent; a wave of pages at most once
-- per interval.
--
-- ARGV[6] least ms between two waves, by Redis's clock   ARGV[7] windows at most
--
-- A wave takes the changes up to the offset at which it began. What changes while it is under way waits for the next:
-- no window is sent twice in one, whatever is applied between its pages.
-- Returns {'OK' or 'MORE', outputs as XRANGE gives them, tail, changed windows that are left},
--         {'WAIT', ms until a wave may begin, changed windows}, {'FENCED'} or {'MOVED'}.
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 121 1700000060000 120-1 1000 1000

local INTERVAL, PAGE = tonumber(ARGV[6]), tonumber(ARGV[7])
local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark', 'updated_at', 'wave')
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end
local next_offset, updated_at, wave = source[2], tonumber(source[4] or ''), source[5]
local now = now_ms()
if updated_at and not wave then
  local left = updated_at + INTERVAL - now
  if left > 0 and left <= INTERVAL then return {'WAIT', int(left), redis.call('ZCARD', CHANGED)} end -- more: the clock was set back
end

local upto = wave or next_offset
local members = redis.call('ZRANGEBYSCORE', CHANGED, '-inf', upto, 'LIMIT', 0, PAGE + 1)
if not wave and #members == 0 then return {'OK', {}, ARGV[5], redis.call('ZCARD', CHANGED)} end
local more = table.remove(members, PAGE + 1) ~= nil
local outputs = {}
for first = 1, #members, 1000 do
  local last = math.min(first + 999, #members)
  for i, finish in ipairs(redis.call('ZMSCORE', DUE, unpack(members, first, last))) do
    local member = members[first + i - 1]
    local candle = finish and (read_candle(NAMESPACE .. 'ohlc:' .. member))
    if candle and candle[STATUS] == 'open' then
      local fields = due_candle_fields(member, finish, candle)
      fields[1] = 'update'
      outputs[#outputs + 1] = {offset = next_offset, fields = fields}
    end
  end
end

check_rights()
if more then
  redis.call('HSET', SOURCE, 'seen', int(now), 'wave', upto)
else
  redis.call('HSET', SOURCE, 'seen', int(now), 'updated_at', int(now))
  redis.call('HDEL', SOURCE, 'wave')
end
call_with_many('ZREM', CHANGED, members)
local entries, tail = append(outputs, ARGV[5])
return {more and 'MORE' or 'OK', entries, tail, redis.call('ZCARD', CHANGED)}
