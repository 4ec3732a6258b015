-- Makes an id of a symbol one rule, or, with an empty set, no rule: what the id was before goes in the same step.
--
-- KEYS[1..4] tw:rules:<SYM>:edge, …:level:above, …:level:below, …:level:equal
-- KEYS[5] tw:rules:<SYM>:opts   KEYS[6] tw:fired:<SYM>   KEYS[7] tw:symbols
-- ARGV[1] rule id
-- ARGV[2] the rule's set, its place in KEYS (1 to 4); '' removes the id
-- ARGV[3] op
-- ARGV[4] threshold, plain decimal
-- ARGV[5] options as JSON, '' for none
-- ARGV[6] 'cooldown' if the options have one: then the time of the last firing is kept
-- ARGV[7] the symbol as it stands in keys
-- Returns what the id was: {options or '', set, op, threshold, set, op, threshold, …}
--
-- Example: EVAL … 7 tw:rules:BBCA:edge … tw:symbols alice-1 1 >= 9500 '' '' BBCA
--          {'', '2', '>=', '9400'}: it was the level rule >= 9400, without options
--
-- All reads come first, so a key of another type refuses the whole call. The first write is the ZADD, which
-- Redis refuses when it is out of memory.

local OPS = {'<', '<=', '=', '>=', '>'}
local opts, fired, symbols = KEYS[5], KEYS[6], KEYS[7]
local id, set, op, threshold, options, cooldown, symbol = unpack(ARGV)
assert(#KEYS == 7 and #ARGV == 7, 'put_rule: 7 keys and 7 arguments')

local members = {}
for i, any in ipairs(OPS) do members[i] = any .. ' ' .. id end

local before = {redis.call('HGET', opts, id) or ''}
local stale = {}
for place = 1, 4 do
  for i, score in ipairs(redis.call('ZMSCORE', KEYS[place], unpack(members))) do
    if score then
      before[#before + 1], before[#before + 2], before[#before + 3] = tostring(place), OPS[i], score
      if tostring(place) ~= set or OPS[i] ~= op then stale[#stale + 1] = {KEYS[place], members[i]} end
    end
  end
end
redis.call('HEXISTS', fired, id)
redis.call('SISMEMBER', symbols, symbol)

if set ~= '' then
  redis.call('ZADD', KEYS[tonumber(set)], threshold, op .. ' ' .. id)
  redis.call('SADD', symbols, symbol)
end
for _, rule in ipairs(stale) do redis.call('ZREM', rule[1], rule[2]) end
if set ~= '' and options ~= '' then
  redis.call('HSET', opts, id, options)
else
  redis.call('HDEL', opts, id)
end
if cooldown ~= 'cooldown' then redis.call('HDEL', fired, id) end
return before
