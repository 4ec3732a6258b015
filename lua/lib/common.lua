-- Put in front of every script: key names, the guard, the outbox, numbers as plain decimals.
--
-- KEYS[1] tw:source:<topic/p>   KEYS[2] tw:due:<topic/p>   KEYS[3] tw:outbox:<topic/p>
-- KEYS[4] tw:changed:<topic/p>
-- ARGV[1] namespace, ARGV[2] token of the caller
-- ARGV[3..5] of guarded scripts: the state position the caller holds
--            (next offset, watermark in ms or '' before the first tick, id of the last outbox entry)

local SOURCE, DUE, OUTBOX, CHANGED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local NAMESPACE, TOKEN = ARGV[1], ARGV[2]
local format = string.format

-- The one place in Lua that names keys of a symbol (src/store/keys.rs is the one in Rust).
local function key(family, symbol, rest)
  return NAMESPACE .. family .. ':' .. symbol .. (rest or '')
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text; tostring would print 14 digits.
local function int(n)
  return format('%.0f', n)
end

-- Id of the last entry ever added to the outbox, '0-0' if there was none. It outlives trimming, and goes back
-- with the data when Redis does: so it tells a rollback that left offset and watermark as they were.
local function outbox_tail()
  local info = redis.pcall('XINFO', 'STREAM', OUTBOX)
  if info.err then
    if info.err:find('no such key', 1, true) then return '0-0' end
    error(OUTBOX .. ': ' .. info.err)
  end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

-- nil if the caller owns the partition and holds its present position, else the refusal to return.
local function refused(token, next_offset, watermark)
  if token ~= TOKEN then return {'FENCED'} end
  if next_offset ~= ARGV[3] or (watermark or '') ~= ARGV[4] or outbox_tail() ~= ARGV[5] then return {'MOVED'} end
end

-- A right that was taken away since the probe would end a script between two of its writes. So it is asked for all of
-- them before the first: one key of each family stands for the others.
local function check_rights()
  local writes = {
    {'HSET', SOURCE, 'field', 'value'}, {'HDEL', SOURCE, 'field'},
    {'ZADD', DUE, '0', 'member'}, {'ZREM', DUE, 'member'},
    {'ZADD', CHANGED, 'NX', '0', 'member'}, {'ZREM', CHANGED, 'member'}, {'XADD', OUTBOX, '*', 'field', 'value'},
    {'HSET', key('last', '%probe'), 'field', 'value'}, {'HSET', key('fired', '%probe'), 'field', 'value'},
    {'HDEL', key('fired', '%probe'), 'field'}, {'HSET', key('ohlc', '%probe'), 'field', 'value'},
    {'PEXPIRE', key('ohlc', '%probe'), '1'}, {'ZREM', key('rules', '%probe', ':edge'), 'member'},
    {'HDEL', key('rules', '%probe', ':opts'), 'field'}, {'SADD', NAMESPACE .. 'symbols', 'member'},
  }
  for _, words in ipairs(writes) do
    if not redis.acl_check_cmd(unpack(words)) then
      error({err = 'NOPERM this user may not call ' .. words[1] .. ' on ' .. words[2]})
    end
  end
end

-- A command on a key with any even number of arguments, as many at a time as Lua's stack takes.
local function call_with_many(command, name, arguments)
  for first = 1, #arguments, 1000 do
    redis.call(command, name, unpack(arguments, first, math.min(first + 999, #arguments)))
  end
end

-- End of the earliest open window, '' if none is open.
local function next_due()
  return redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or ''
end

-- A double as plain decimal of at most 15 digits, never an exponent.
local function plain(x)
  local text = format('%.15g', x)
  if not text:find('e', 1, true) then return text end
  local sign, whole, fraction, exponent = text:match('^(%-?)(%d)%.?(%d*)e([-+]%d+)$')
  exponent = tonumber(exponent)
  if exponent < 0 then return sign .. '0.' .. ('0'):rep(-exponent - 1) .. whole .. fraction end
  return sign .. whole .. fraction .. ('0'):rep(exponent - #fraction)
end

-- Whether a stored text is a number as this service writes them; tonumber takes nan, inf, 0x and exponents too.
local function is_number(text)
  return tonumber(text) and not text:find('[^%d%.%-]')
end

-- What is wrong with a stored text that is no number.
local function no_number(name, field, text)
  return name .. ': ' .. field .. ' ' .. (text or '(none)') .. ' is no number'
end

-- Adds entries to the outbox, ids counting on from its tail. `outputs` are {offset =, fields = {...}} in order of
-- offset. Returns the entries as XRANGE would, and the new tail.
--
-- An entry's first field is its kind, and the value what is sent: one text, since a field each takes twice as long.
--   notification  <symbol> <trigger> <op> <threshold> <price> <previous, or -> <ts> <index> <rule id>   note  <note>
--   candle        <symbol> <interval> <start> <end> <open> <high> <low> <close> <volume> <count> <revision>
--   update        the same of a candle that is open
--   late          <symbol> <price> <volume> <ts> <index> <interval> …
--   dead_letter   <reason>
-- A symbol as in keys has no spaces. Rule id, note and reason are whatever they are.
local function append(outputs, tail)
  local entries = {}
  local offset, n = tail:match('^(%d+)%-(%d+)$')
  n = tonumber(n)
  for i, output in ipairs(outputs) do
    local at = int(output.offset)
    if at == offset then n = n + 1 else offset, n = at, 1 end
    local id = at .. '-' .. n
    redis.call('XADD', OUTBOX, id, unpack(output.fields))
    entries[i] = {id, output.fields}
  end
  return entries, offset .. '-' .. int(n)
end
