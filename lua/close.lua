-- close: seals a page of windows whose end the watermark has passed, earliest first.
--
-- ARGV[6] windows at most   ARGV[7] ms after which a closed candle expires
--
-- Each becomes final and goes to the outbox under the next offset. One that was sent before and got on-time ticks
-- again (its symbol moved here from another partition) becomes revised.
-- Returns {'OK' or 'MORE', outputs as XRANGE gives them, tail, next_due, {keys that held no candle}},
--         {'FENCED'} or {'MOVED'}.
--
-- Example: EVALSHA … 3 tw:source:ticks/0 … tw: 9f… 121 1700000060000 120-1 5000 172800000

local PAGE, EXPIRY = tonumber(ARGV[6]), ARGV[7]
local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark')
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end
local next_offset, watermark = source[2], source[3]
if not watermark then return {'OK', {}, ARGV[5], next_due(), {}} end

local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', watermark, 'WITHSCORES', 'LIMIT', 0, PAGE + 1)
local more = #due > 2 * PAGE
local outputs, sealed, members, lost = {}, {}, {}, {}
for i = 1, math.min(#due, 2 * PAGE), 2 do
  local member, finish = due[i], due[i + 1]
  local name = NAMESPACE .. 'ohlc:' .. member
  local candle = read_candle(name)
  members[#members + 1] = member
  if candle and not candle.new then
    if candle.status == 'open' then
      candle.status = 'final'
    else
      candle.status, candle.revision = 'revised', next_offset
    end
    local symbol, interval, start = member:match('^(.*):([^:]+):(%-?%d+)$')
    sealed[#sealed + 1] = {name, candle}
    outputs[#outputs + 1] = {offset = next_offset, fields = candle_fields(symbol, interval, start, finish, candle)}
  else
    lost[#lost + 1] = name
  end
end
if #members == 0 then return {'OK', {}, ARGV[5], next_due(), {}} end

check_rights()
redis.call('HSET', SOURCE, 'seen', int(now_ms()))
for _, candle in ipairs(sealed) do
  redis.call('HSET', candle[1], 'status', candle[2].status, 'revision', candle[2].revision)
  redis.call('PEXPIRE', candle[1], EXPIRY)
end
for first = 1, #members, 1000 do
  redis.call('ZREM', DUE, unpack(members, first, math.min(first + 999, #members)))
end
local entries, tail = append(outputs, ARGV[5])
return {more and 'MORE' or 'OK', entries, tail, next_due(), lost}
