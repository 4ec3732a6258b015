-- close: seals a page of windows whose end the watermark has passed, earliest first.
--
-- ARGV[6] windows at most   ARGV[7] ms after which a closed candle expires
--
-- Each becomes final (or revised) and goes to the outbox under the next offset.
-- Returns {'OK' or 'MORE', outputs as XRANGE gives them, tail, next_due, {keys that held no candle}},
--         {'FENCED'} or {'MOVED'}.
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 121 1700000060000 120-1 5000 172800000

local PAGE, EXPIRY = tonumber(ARGV[6]), ARGV[7]
local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark')
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end
local next_offset, watermark = source[2], source[3]
if not watermark then return {'OK', {}, ARGV[5], next_due(), {}} end

local due = windows_due(watermark, PAGE)
if #due == 0 then return {'OK', {}, ARGV[5], next_due(), {}} end
local more = table.remove(due, PAGE + 1) ~= nil
local outputs, sealed, members, lost = {}, {}, {}, {}
for i, window in ipairs(due) do
  local name = NAMESPACE .. 'ohlc:' .. window.member
  local candle = read_candle(name)
  if candle then
    seal_candle(candle, next_offset)
    sealed[#sealed + 1] = {name = name, candle = candle}
    outputs[#outputs + 1] = {offset = next_offset, fields = due_candle_fields(window.member, window.finish, candle)}
  else
    lost[#lost + 1] = name
  end
  members[i] = window.member
end

check_rights()
redis.call('HSET', SOURCE, 'seen', int(now_ms()))
for _, one in ipairs(sealed) do write_sealed(one.name, one.candle, EXPIRY) end
call_with_many('ZREM', DUE, members)
call_with_many('ZREM', CHANGED, members)
local entries, tail = append(outputs, ARGV[5])
return {more and 'MORE' or 'OK', entries, tail, next_due(), lost}
