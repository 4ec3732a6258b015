-- One tick: last price, rules, candle. What one writes first; it is called once a tick and awaited.
--
-- KEYS    tw:last:<SYM>, tw:rules:<SYM>:edge, naive:candle:<SYM>
-- ARGV    price, volume, ts (ms), interval (ms)
-- Returns { rules that fired: id…}, and the candle that this tick closed: {start, open, high, low, close, volume,
-- count}, or false

local price, volume, ts, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local fired, closed = {}, false

local last = tonumber(redis.call('HGET', KEYS[1], 'price'))
if last and last ~= price then
  local low, high = math.min(last, price), math.max(last, price)
  local rules = redis.call('ZRANGEBYSCORE', KEYS[2], low, high, 'WITHSCORES')
  for i = 1, #rules, 2 do
    local op, id = rules[i]:match('^(%S+) (.*)$')
    local threshold = tonumber(rules[i + 1])
    local function matches(p)
      if op == '>=' then return p >= threshold end
      if op == '<=' then return p <= threshold end
      if op == '>' then return p > threshold end
      if op == '<' then return p < threshold end
      return p == threshold
    end
    if matches(price) and not matches(last) then
      fired[#fired + 1] = id
    end
  end
end
redis.call('HSET', KEYS[1], 'price', ARGV[1], 'ts', ARGV[3])

local start = ts - ts % interval
local candle = redis.call('HMGET', KEYS[3], 'start', 'open', 'high', 'low', 'close', 'volume', 'count')
if candle[1] and tonumber(candle[1]) ~= start then
  closed = candle
end
if closed or not candle[1] then
  redis.call('HSET', KEYS[3], 'start', string.format('%d', start), 'open', ARGV[1], 'high', ARGV[1], 'low', ARGV[1],
    'close', ARGV[1], 'volume', ARGV[2], 'count', 1)
else
  if price > tonumber(candle[3]) then redis.call('HSET', KEYS[3], 'high', ARGV[1]) end
  if price < tonumber(candle[4]) then redis.call('HSET', KEYS[3], 'low', ARGV[1]) end
  redis.call('HSET', KEYS[3], 'close', ARGV[1])
  redis.call('HINCRBY', KEYS[3], 'volume', ARGV[2])
  redis.call('HINCRBY', KEYS[3], 'count', 1)
end
return { fired, closed }
