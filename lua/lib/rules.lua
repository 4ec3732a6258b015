-- Rules: found by threshold range, fired in order. Reads only; what firing changes is returned to be written.

local IN_SET = {
  ['edge'] = {['<'] = true, ['<='] = true, ['='] = true, ['>='] = true, ['>'] = true},
  ['level:above'] = {['>='] = true, ['>'] = true},
  ['level:below'] = {['<='] = true, ['<'] = true},
  ['level:equal'] = {['='] = true},
}

local function matches(op, price, threshold)
  if op == '>=' then return price >= threshold end
  if op == '>' then return price > threshold end
  if op == '<=' then return price <= threshold end
  if op == '<' then return price < threshold end
  return price == threshold
end

-- Bytes, as the commands that write rules keep them. What a hand wrote beyond them is no rule.
local MAX_ID, MAX_NOTE, MAX_OPTIONS = 256, 1024, 4096

local NONE = {}

local TOO_LARGE = 9.999999999999995e17 -- printed with 15 digits this is 1e18

-- Whether a threshold, printed with 15 digits, is a price: below 1e18, at most 18 decimals.
local function is_price(threshold)
  local size = math.abs(threshold)
  return size < TOO_LARGE and (size >= 0.001 or #plain(size) <= #'0.' + 18)
end

-- The rules of one set with thresholds from `low` to `high` (texts), by threshold, at most `limit`.
-- What does not parse is left out and its member put on `bad`. Second result: the error of a wrong-typed key.
local function find_rules(symbol, set, low, high, limit, bad)
  local name = key('rules', symbol, ':' .. set)
  local found = redis.pcall('ZRANGEBYSCORE', name, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
  if found.err then return nil, name .. ': ' .. found.err end
  if not found[1] then return NONE end
  local rules = {}
  for i = 1, #found, 2 do
    local member, threshold = found[i], tonumber(found[i + 1])
    local op, id = member:match('^(%S+) (.+)$')
    if op and IN_SET[set][op] and #id <= MAX_ID and is_price(threshold) then
      rules[#rules + 1] = {set = name, member = member, op = op, id = id, threshold = threshold}
    else
      bad[#bad + 1] = name .. ' ' .. member:sub(1, MAX_ID)
    end
  end
  rules.full = #found / 2 >= limit
  return rules
end

-- Index of the first rule whose threshold is at or above `price`.
local function lower_bound(rules, price)
  local first, last = 1, #rules + 1
  while first < last do
    local middle = math.floor((first + last) / 2)
    if rules[middle].threshold < price then first = middle + 1 else last = middle end
  end
  return first
end

-- What is known of a symbol's rules beside their thresholds, read when one of them first matches.
local function rule_memory(symbol)
  local opts, fired = key('rules', symbol, ':opts'), key('fired', symbol)
  local some = redis.pcall('HLEN', opts)
  if type(some) == 'table' then return nil, opts .. ': ' .. some.err end
  local any = redis.pcall('HLEN', fired)
  if type(any) == 'table' then return nil, fired .. ': ' .. any.err end
  return {opts = opts, fired = fired, some = some > 0, options = {}, last = {}, removed = {}, bad = {}}
end

-- Options of a rule: a table, or false if they do not parse.
local function options_of(memory, id)
  if not memory.some then return NONE end
  local options = memory.options[id]
  if options == nil then
    local text = redis.call('HGET', memory.opts, id)
    if text then
      local parsed, value = pcall(cjson.decode, #text <= MAX_OPTIONS and text or '')
      options = parsed and type(value) == 'table' and value or false
      if options and type(options.note) == 'string' and #options.note > MAX_NOTE then options = false end
      if options then
        for _, field in ipairs({'cooldown', 'expires'}) do
          if options[field] == cjson.null then options[field] = nil end
          if options[field] and type(options[field]) ~= 'number' then options = false break end
        end
      end
    else
      options = NONE
    end
    memory.options[id] = options
  end
  return options
end

local function is_removed(memory, rule)
  return memory.removed[rule.set .. ' ' .. rule.member] ~= nil
end

-- Takes a rule out of its set and, with it, what is kept under its id: for the rest of this batch too, so that it
-- does not matter where batches are cut.
local function remove(memory, rule)
  memory.removed[rule.set .. ' ' .. rule.member] = rule
  memory.options[rule.id], memory.last[rule.id] = NONE, false
end

-- The options of a matching rule if it may fire at event time `ts`, else nil; remembers what that changes.
local function may_fire(memory, rule, ts)
  local options = options_of(memory, rule.id)
  if not options then
    memory.bad[rule.id] = true
    return nil
  end
  if options.expires and ts >= options.expires then
    remove(memory, rule)
    return nil
  end
  if options.cooldown then
    local last = memory.last[rule.id]
    if last == nil then last = tonumber(redis.call('HGET', memory.fired, rule.id) or '') or false end
    if last and ts - last < options.cooldown then return nil end
    memory.last[rule.id], memory.touched = ts, true
  end
  if options.once == true then remove(memory, rule) end
  return options
end
