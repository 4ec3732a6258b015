-- Candles: how ticks merge into a stored one. In a script a candle is the list of its fields' texts, in this order; the
-- hash and the fields sent have these names.

local CANDLE = {'open', 'high', 'low', 'close', 'volume', 'count', 'open_ts', 'close_ts', 'revision', 'status'}
local OPEN, HIGH, LOW, CLOSE, VOLUME, COUNT, OPEN_TS, CLOSE_TS, REVISION, STATUS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local NUMBERS = 9 -- of these fields
local ALL_NUMBERS = '^' .. ('%-?%d+%.?%d* '):rep(NUMBERS) .. '$'

-- Reads a candle; nil if there is none. Second result: the error of a key of another type, or of a field that is no
-- number.
local function read_candle(name)
  local candle = redis.pcall('HMGET', name, unpack(CANDLE))
  if candle.err then return nil, name .. ': ' .. candle.err end
  if not candle[OPEN] then return nil end
  local whole = true
  for i = 1, #CANDLE do whole = whole and candle[i] end
  if whole and (table.concat(candle, ' ', 1, NUMBERS) .. ' '):find(ALL_NUMBERS) then return candle end
  for i = 1, NUMBERS do
    if not candle[i] or not is_number(candle[i]) then return nil, no_number(name, CANDLE[i], candle[i]) end
  end
  if not candle[STATUS] then return nil, name .. ': no status' end
  return candle
end

-- Merges a partial candle: open has the least (ts, order), close the greatest; the stored ticks came first.
local function merge_candle(candle, partial)
  if tonumber(partial[OPEN_TS]) < tonumber(candle[OPEN_TS]) then
    candle[OPEN], candle[OPEN_TS] = partial[OPEN], partial[OPEN_TS]
  end
  if tonumber(partial[CLOSE_TS]) >= tonumber(candle[CLOSE_TS]) then
    candle[CLOSE], candle[CLOSE_TS] = partial[CLOSE], partial[CLOSE_TS]
  end
  if tonumber(partial[HIGH]) > tonumber(candle[HIGH]) then candle[HIGH] = partial[HIGH] end
  if tonumber(partial[LOW]) < tonumber(candle[LOW]) then candle[LOW] = partial[LOW] end
  candle[VOLUME] = add_decimal(candle[VOLUME], partial[VOLUME])
  candle[COUNT] = int(candle[COUNT] + partial[COUNT])
end

-- What its window's end makes of a candle: final, or revised if it was sent before and got on-time ticks again (its
-- symbol moved here from another partition).
local function seal_candle(candle, next_offset)
  if candle[STATUS] == 'open' then
    candle[STATUS] = 'final'
  else
    candle[STATUS], candle[REVISION] = 'revised', next_offset
  end
end

-- `stored`: as it was read, nil if there was none. A field that is as it was is not written.
local function write_candle(name, candle, stored)
  local changed = {}
  for i = 1, #CANDLE do
    if not stored or candle[i] ~= stored[i] then
      changed[#changed + 1] = CANDLE[i]
      changed[#changed + 1] = candle[i]
    end
  end
  if #changed > 0 then redis.call('HSET', name, unpack(changed)) end
end

-- The outbox fields of a candle that is sent.
local function candle_fields(symbol, interval, start, finish, c)
  return {'candle', symbol .. ' ' .. interval .. ' ' .. start .. ' ' .. finish .. ' ' .. c[OPEN] .. ' ' .. c[HIGH] .. ' '
    .. c[LOW] .. ' ' .. c[CLOSE] .. ' ' .. c[VOLUME] .. ' ' .. c[COUNT] .. ' ' .. c[REVISION]}
end

-- The same, of a member of `due`: `<symbol>:<interval>:<start>`.
local function due_candle_fields(member, finish, c)
  local symbol, interval, start = member:match('^(.*):([^:]+):(%-?%d+)$')
  return candle_fields(symbol, interval, start, finish, c)
end

-- The first windows whose end the watermark has passed, one more than `page` if there are more, by end and member.
local function windows_due(watermark, page)
  local found = redis.call('ZRANGEBYSCORE', DUE, '-inf', watermark, 'WITHSCORES', 'LIMIT', 0, page + 1)
  local windows = {}
  for i = 1, #found, 2 do windows[#windows + 1] = {member = found[i], finish = found[i + 1]} end
  return windows
end

local function write_sealed(name, candle, expiry)
  redis.call('HSET', name, 'status', candle[STATUS], 'revision', candle[REVISION])
  redis.call('PEXPIRE', name, expiry)
end
