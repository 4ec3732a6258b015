-- Candles: how ticks merge into a stored one. The hash and the fields sent are the same names.

local CANDLE = {'open', 'high', 'low', 'close', 'volume', 'count', 'open_ts', 'close_ts', 'status', 'revision'}
local NUMBERS = 8 -- of these fields

-- Reads a candle: a table by field, `new` if there is none. Second result: the error of a key of another type, or of
-- a field that is no number.
local function read_candle(name)
  local values = redis.pcall('HMGET', name, unpack(CANDLE))
  if values.err then return nil, name .. ': ' .. values.err end
  if not values[1] then return {new = true} end
  local candle = {}
  for i, field in ipairs(CANDLE) do
    if i <= NUMBERS and not is_number(values[i]) then
      return nil, no_number(name, field, values[i])
    end
    candle[field] = values[i]
  end
  return candle
end

-- Merges a partial candle: open has the least (ts, order), close the greatest; the stored ticks came first.
local function merge_candle(candle, partial)
  if candle.new then
    candle.new = nil
    for field, value in pairs(partial) do candle[field] = value end
    candle.count, candle.open_ts, candle.close_ts = int(partial.count), int(partial.open_ts), int(partial.close_ts)
    candle.status, candle.revision = 'open', '0'
    return
  end
  if partial.open_ts < tonumber(candle.open_ts) then
    candle.open, candle.open_ts = partial.open, int(partial.open_ts)
  end
  if partial.close_ts >= tonumber(candle.close_ts) then
    candle.close, candle.close_ts = partial.close, int(partial.close_ts)
  end
  if tonumber(partial.high) > tonumber(candle.high) then candle.high = partial.high end
  if tonumber(partial.low) < tonumber(candle.low) then candle.low = partial.low end
  candle.volume = add_decimal(candle.volume, partial.volume)
  candle.count = int(candle.count + partial.count)
end

local function write_candle(name, c)
  redis.call('HSET', name, 'open', c.open, 'high', c.high, 'low', c.low, 'close', c.close, 'volume', c.volume,
    'count', c.count, 'open_ts', c.open_ts, 'close_ts', c.close_ts, 'status', c.status, 'revision', c.revision)
end

-- The outbox fields of a candle that is sent.
local function candle_fields(symbol, interval, start, finish, c)
  return {'kind', 'candle', 'symbol', symbol, 'interval', interval, 'start', start, 'end', finish,
    'open', c.open, 'high', c.high, 'low', c.low, 'close', c.close, 'volume', c.volume, 'count', c.count,
    'revision', c.revision}
end
