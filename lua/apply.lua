-- apply: the effect of one batch [from, to) of one source partition, all of it or none.
--
-- ARGV[6] to: the next offset after   ARGV[7] watermark after, ms or ''   ARGV[8] greatest ts in the batch, ms or ''
-- ARGV[9] last record `<offset> <timestamp> <checksum>`, '' if the batch holds none
-- ARGV[10..12] ticks, late ticks, dead letters to add to the running counts
-- ARGV[13] outputs at most, '' if the batch is one record and cannot be cut   ARGV[14] firings a tick at most
-- ARGV[15] ms after which a revised candle expires   ARGV[16] intervals, separated by spaces
-- ARGV[17] windows sealed here at most   ARGV[19] 'updates' if open candles that change are noted, to be sent
-- ARGV[18] number of extras: outputs known beforehand, eight arguments each, after ARGV[19]:
--          offset, index, kind, then late: symbol price volume ts intervals; dead: reason '' '' '' ''
-- then pairs: symbol as in keys, its ticks packed (src/store/pack.rs has the layout)
--
-- Windows whose end the watermark has passed with this batch are sealed with it, as `close` does: what follows is what
-- `close` would answer next. If they are more than a page, that is left to `close`.
--
-- Returns {'OK', outputs as XRANGE gives them, tail, next_due, ticks out of order, firings refused,
--          {rules that do not parse}, {symbols whose keys cannot be used}, {keys that held no candle}},
--         {'FENCED'}, {'MOVED'}, {'DUE'} (close windows first) or {'SPLIT'} (halve the batch).
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 121 1700000060000 120-1 321 1700000062000 … BBCA <packed>

local FROM, TO, WATERMARK, MAX_TS, LAST_RECORD = tonumber(ARGV[3]), ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local MAX_OUTPUTS, MAX_MATCHES, EXPIRY = tonumber(ARGV[13]) or math.huge, tonumber(ARGV[14]), ARGV[15]
local PAGE = tonumber(ARGV[17])
local EXTRAS, EXTRA_SIZE, FIRST_EXTRA = tonumber(ARGV[18]), 8, 20
local NOTES_CHANGES = ARGV[19] == 'updates'
local RULES_READ = MAX_OUTPUTS < math.huge and math.max(MAX_OUTPUTS, MAX_MATCHES) + 1 or 10 * MAX_MATCHES
local COUNTS = {'ticks', 'late', 'out_of_order', 'notifications', 'dead_letters'}
local EDGE, LEVEL, REVISED, LATE, DEAD = 1, 2, 3, 4, 5 -- order of outputs of one tick
local AFTER_TICKS = math.huge -- a revision belongs to its record, after the firings of its ticks
local HEADER, WINDOW = '<dddBBc0Bc0Bc0Bc0', '<BBc0Bc0Bc0Bc0Bc0Bc0Bc0Bc0Bc0Bc0Bc0'
local STEP = 16 -- ticks of a stretch, and numbers of a column read at a time (src/store/pack.rs has it too)
local COLUMN = '<' .. ('d'):rep(STEP)

local intervals = {}
for name in ARGV[16]:gmatch('%S+') do intervals[#intervals + 1] = name end
local partition = SOURCE:sub(#NAMESPACE + #'source:' + 1)

-- ---- reads and checks: nothing is written down to the line that says so

local source = redis.call('HMGET', SOURCE, 'token', 'next_offset', 'watermark', 'max_ts', unpack(COUNTS))
local refusal = refused(source[1], source[2], source[3])
if refusal then return refusal end
local NEWEST_BEFORE = tonumber(source[4] or '')
if source[3] and redis.call('ZRANGEBYSCORE', DUE, '-inf', source[3], 'LIMIT', 0, 1)[1] then return {'DUE'} end

local outputs, total, notifications, refused_matches, out_of_order = {}, 0, 0, 0, 0
local bad_rules, poisoned, dead = {}, {}, {}

local function output(list, offset, index, class, fields, threshold)
  total = total + 1
  list[#list + 1] = {offset = offset, index = index, class = class, fields = fields, threshold = threshold or 0,
    order = total}
end

local function dead_letter(offset, index, reason)
  if dead[offset] then return 0 end
  dead[offset] = true
  output(outputs, offset, index, DEAD, {'dead_letter', reason})
  return 1
end

-- Unpacks the partial candles of a symbol. Returns them and where the ticks begin.
local function unpack_windows(symbol, blob, at, windows)
  local partials = {}
  for i = 1, windows do
    local number, start, finish, revises, open, high, low, close, volume, count, open_ts, close_ts, next_at =
      struct.unpack(WINDOW, blob, at)
    at = next_at
    local interval = intervals[number]
    local member = symbol .. ':' .. interval .. ':' .. start
    partials[i] = {name = NAMESPACE .. 'ohlc:' .. member, member = member, symbol = symbol, interval = interval,
      start = start, finish = finish, revises = revises, open = revises == '', is_new = false, stored = nil,
      candle = {open, high, low, close, volume, count, open_ts, close_ts, '0', 'open'}}
  end
  return partials, at
end

-- Asks with one call whether there is any of what there mostly is not: level rules, and windows of a time that this
-- partition has not come to. Returns false if there is none of it, and notes on the windows that they are new.
local function ask_for_rare(symbol, partials)
  local names = {key('rules', symbol, ':level:below'), key('rules', symbol, ':level:equal'),
    key('rules', symbol, ':level:above')}
  for _, partial in ipairs(partials) do
    partial.is_new = NEWEST_BEFORE ~= nil and tonumber(partial.start) > NEWEST_BEFORE and #names < 1000
    if partial.is_new then names[#names + 1] = partial.name end
  end
  local rare = redis.call('EXISTS', unpack(names)) > 0
  for _, partial in ipairs(partials) do partial.is_new = partial.is_new and not rare end
  return rare
end

-- Merges the partial candles of a symbol with the stored ones. Returns the windows by order of first use, or nil and
-- the error.
local function merge_windows(partials, list)
  local touched, revised = {}, {}
  for _, partial in ipairs(partials) do
    local window = revised[partial.member] -- each late tick has a partial of its own
    if window then
      merge_candle(window.candle, partial.candle)
    else
      window = partial
      if not partial.is_new then
        local stored, problem = read_candle(partial.name)
        if problem then return nil, problem end
        if stored then
          local merged = {unpack(stored)}
          merge_candle(merged, partial.candle)
          window.stored, window.candle = stored, merged
        end
      end
      touched[#touched + 1] = window
    end
    if partial.revises ~= '' then
      revised[partial.member] = window
      window.candle[STATUS], window.candle[REVISION] = 'revised', int(partial.revises + 1)
      output(list, tonumber(partial.revises), AFTER_TICKS, REVISED,
        candle_fields(window.symbol, window.interval, window.start, window.finish, window.candle))
    end
  end
  return touched
end

-- The rules that prices from `low` to `high` (texts), after `previous`, can fire. nil and the error of a bad key.
local function find_candidates(symbol, previous, low, high, ticks, may_have_levels, bad)
  local edge, problem = NONE, nil
  if previous or ticks > 1 then
    local from, upto = low, high
    if previous then
      local before = tonumber(previous)
      if before < tonumber(low) then from = previous end
      if before > tonumber(high) then upto = previous end
    end
    if tonumber(from) ~= tonumber(upto) then
      edge, problem = find_rules(symbol, 'edge', from, upto, RULES_READ, bad)
      if problem then return nil, problem end
    end
  end
  local below, equal, above = NONE, NONE, NONE
  if may_have_levels then
    below, problem = find_rules(symbol, 'level:below', low, '+inf', RULES_READ, bad)
    if problem then return nil, problem end
    equal, problem = find_rules(symbol, 'level:equal', low, high, RULES_READ, bad)
    if problem then return nil, problem end
    above, problem = find_rules(symbol, 'level:above', '-inf', high, RULES_READ, bad)
    if problem then return nil, problem end
  end
  local levels = #below + #equal + #above > 0 and {below, equal, above} or NONE
  return {
    edge = edge, levels = levels, above = above,
    any = #edge > 0 or #levels > 0,
    full = edge.full or below.full or equal.full or above.full,
  }
end

-- Fires what one tick fires: edge rules, then level rules below, equal, above, each by threshold, then by member.
-- Filed by threshold, rules of one threshold are then in the order of their members' bytes (`<`, `=`, `>`); a
-- comparison of texts in Lua would go by the server's locale.
local function fire(symbol, candidates, memory, list, offset, index, ts, price, previous)
  local fired = 0
  local function try(rule, class, trigger)
    if is_removed(memory, rule) then return end
    if fired >= MAX_MATCHES then
      refused_matches = refused_matches + 1
      return
    end
    local options = may_fire(memory, rule, ts)
    if not options then return end
    fired, notifications = fired + 1, notifications + 1
    local fields = {'notification', symbol .. ' ' .. trigger .. ' ' .. rule.op .. ' ' .. plain(rule.threshold) .. ' '
      .. plain(price) .. ' ' .. (previous and plain(previous) or '-') .. ' ' .. int(ts) .. ' ' .. int(index) .. ' '
      .. rule.id}
    if type(options.note) == 'string' then fields[3], fields[4] = 'note', options.note end
    output(list, offset, index, class, fields, rule.threshold)
  end
  if previous and previous ~= price and #candidates.edge > 0 then
    local upto = math.max(previous, price)
    for i = lower_bound(candidates.edge, math.min(previous, price)), #candidates.edge do
      local rule = candidates.edge[i]
      if rule.threshold > upto then break end
      if matches(rule.op, price, rule.threshold) and not matches(rule.op, previous, rule.threshold) then
        try(rule, EDGE, 'edge')
      end
    end
  end
  for _, rules in ipairs(candidates.levels) do
    local is_above = rules == candidates.above
    for i = is_above and 1 or lower_bound(rules, price), #rules do
      local rule = rules[i]
      if is_above and rule.threshold > price then break end
      if matches(rule.op, price, rule.threshold) then try(rule, LEVEL, 'level') end
    end
  end
end

-- The open interval around `price` without the threshold of an edge rule: prices that stay in it fire nothing. Empty if
-- there is a level rule, or a threshold at the price itself.
local function quiet_span(candidates, price)
  if not price or #candidates.levels > 0 then return math.huge, -math.huge end
  local above = lower_bound(candidates.edge, price)
  local below, next_rule = candidates.edge[above - 1], candidates.edge[above]
  if next_rule and next_rule.threshold == price then return math.huge, -math.huge end
  return below and below.threshold or -math.huge, next_rule and next_rule.threshold or math.huge
end

-- Of the tick with this number, from 0, in the columns at `at`: price, ts, offset - from, index.
local function offset_and_index(blob, at, ticks, number)
  local offsets = at + 16 * ticks
  return FROM + struct.unpack('<I4', blob, offsets + 4 * number),
    (struct.unpack('<I4', blob, offsets + 4 * (ticks + number)))
end

-- Whether the stretch of ticks that begins at number `first` can fire nothing, by its lowest and highest price.
local function is_quiet(blob, ranges_at, first, from, upto)
  local low, high = struct.unpack('<dd', blob, ranges_at + 16 * first / STEP)
  return low > from and high < upto
end

-- Goes through a symbol's ticks in order of the log: fires what they fire and counts those older than the one before.
-- `in_order`: ts never falls and need not be read, and a stretch whose prices can fire nothing is passed over.
-- Returns price and ts of the newest (nil if there is none; of no use if `in_order`), or nil for SPLIT.
local function go_through(plan, candidates, blob, at, ticks, in_order, price, ts)
  local stamps_at = at + 8 * ticks
  local ranges_at = stamps_at + 16 * ticks
  local from, upto = quiet_span(candidates, price)
  local moved = false
  for first = 0, ticks - 1, STEP do
    if not (in_order and is_quiet(blob, ranges_at, first, from, upto)) then
      local columns = COLUMN:sub(1, 1 + ticks - first)
      local prices = {struct.unpack(columns, blob, at + 8 * first)}
      local stamps = not in_order and {struct.unpack(columns, blob, stamps_at + 8 * first)}
      if in_order and first > 0 then price = struct.unpack('<d', blob, at + 8 * (first - 1)) end
      for i = 1, math.min(STEP, ticks - first) do
        local now = prices[i]
        if stamps and ts and stamps[i] < ts then
          plan.out_of_order = plan.out_of_order + 1
        else
          if now <= from or now >= upto then
            local number = first + i - 1
            local offset, index = offset_and_index(blob, at, ticks, number)
            local stamp = struct.unpack('<d', blob, stamps_at + 8 * number)
            fire(plan.symbol, candidates, plan.memory, plan.outputs, offset, index, stamp, now, price)
            if total > MAX_OUTPUTS then return nil end
            from, upto = quiet_span(candidates, now)
          end
          price, ts, moved = now, stamps and stamps[i] or ts, true
        end
      end
    end
  end
  if moved then return price, ts end
end

-- What a symbol's ticks do: a plan to write, or nil and what is wrong with a key, or nil for SPLIT.
local function plan_symbol(symbol, blob)
  local ticks, windows, first_ts, in_order, last_ts, low, high, last_price, at = struct.unpack(HEADER, blob)
  local plan = {symbol = symbol, name = key('last', symbol), outputs = {}, bad = {}, out_of_order = 0, first = false,
    candles = nil, memory = nil, price = nil, ts = nil}
  local last = redis.pcall('HMGET', plan.name, 'price', 'ts')
  if last.err then return nil, plan.name .. ': ' .. last.err end
  local previous, previous_ts = last[1], tonumber(last[2] or '')
  for i, field in ipairs({'price', 'ts'}) do
    if last[i] and not is_number(last[i]) then return nil, no_number(plan.name, field, last[i]) end
  end
  plan.first = not previous

  local partials, candidates, problem
  partials, at = unpack_windows(symbol, blob, at, windows)
  local may_have_levels = ask_for_rare(symbol, partials)
  plan.candles, problem = merge_windows(partials, plan.outputs)
  if not plan.candles then return nil, problem end
  candidates, problem = find_candidates(symbol, previous, low, high, ticks, may_have_levels, plan.bad)
  if problem then return nil, problem end
  if candidates.full and MAX_OUTPUTS < math.huge then return nil end

  in_order = in_order == 1 and not (previous_ts and first_ts < previous_ts)
  if in_order then plan.price, plan.ts = last_price, last_ts end
  if in_order and not candidates.any then return plan end
  if candidates.any then
    plan.memory, problem = rule_memory(symbol)
    if problem then return nil, problem end
  end
  local price, ts = go_through(plan, candidates, blob, at, ticks, in_order, tonumber(previous or ''), previous_ts)
  if total > MAX_OUTPUTS then return nil end
  if price and not in_order then plan.price, plan.ts = plain(price), int(ts) end
  return plan
end

-- The records that hold ticks of a symbol whose keys cannot be used.
local function poison(symbol, blob, problem)
  local count = 0
  local ticks, windows, _, _, _, _, _, _, at = struct.unpack(HEADER, blob)
  for _ = 1, windows do at = select(13, struct.unpack(WINDOW, blob, at)) end
  for n = 0, ticks - 1 do
    local offset, index = offset_and_index(blob, at, ticks, n)
    count = count + dead_letter(offset, index, 'symbol ' .. symbol .. ': ' .. problem)
  end
  poisoned[#poisoned + 1] = symbol .. ': ' .. problem
  return count
end

local added_dead = 0
for i = 0, EXTRAS - 1 do
  local at = FIRST_EXTRA + i * EXTRA_SIZE
  local offset, index = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if ARGV[at + 2] == 'late' then
    output(outputs, offset, index, LATE, {'late', table.concat({ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6],
      ARGV[at + 1], ARGV[at + 7]}, ' ')})
  else
    dead_letter(offset, index, ARGV[at + 3])
  end
end

local plans, new_symbols = {}, {}
for i = FIRST_EXTRA + EXTRAS * EXTRA_SIZE, #ARGV, 2 do
  local before = {total, notifications, refused_matches}
  local plan, problem = plan_symbol(ARGV[i], ARGV[i + 1])
  if plan then
    plans[#plans + 1] = plan
    out_of_order = out_of_order + plan.out_of_order
    for _, made in ipairs(plan.outputs) do outputs[#outputs + 1] = made end
    for _, member in ipairs(plan.bad) do bad_rules[#bad_rules + 1] = member end
    if plan.memory then
      for id in pairs(plan.memory.bad) do bad_rules[#bad_rules + 1] = plan.memory.opts .. ' ' .. id end
    end
    if plan.first then new_symbols[#new_symbols + 1] = plan.symbol end
  elseif problem then
    total, notifications, refused_matches = unpack(before)
    added_dead = added_dead + poison(ARGV[i], ARGV[i + 1], problem)
  end
  if not plan and not problem or total > MAX_OUTPUTS then return {'SPLIT'} end
end
if #new_symbols > 0 then redis.call('SCARD', NAMESPACE .. 'symbols') end -- a wrong type is refused here

table.sort(outputs, function(a, b)
  if a.offset ~= b.offset then return a.offset < b.offset end
  if a.index ~= b.index then return a.index < b.index end
  if a.class ~= b.class then return a.class < b.class end
  if a.threshold ~= b.threshold then return a.threshold < b.threshold end
  return a.order < b.order
end)

-- ---- writes: the first is the one that Redis refuses when it is out of memory, so that none is done by halves

check_rights()
local now = int(now_ms())
local added = {tonumber(ARGV[10]), tonumber(ARGV[11]), out_of_order, notifications, ARGV[12] + added_dead}
local changed = {'next_offset', TO, 'watermark', WATERMARK, 'seen', now}
for i, name in ipairs(COUNTS) do
  changed[#changed + 1] = name
  changed[#changed + 1] = int((tonumber(source[4 + i] or '') or 0) + added[i])
end
if MAX_TS ~= '' and not (NEWEST_BEFORE and tonumber(MAX_TS) <= NEWEST_BEFORE) then
  for _, value in ipairs({'max_ts', MAX_TS, 'max_ts_at', now}) do changed[#changed + 1] = value end
end
if LAST_RECORD ~= '' then
  changed[#changed + 1] = 'last_record'
  changed[#changed + 1] = LAST_RECORD
end
redis.call('HSET', SOURCE, unpack(changed))
if WATERMARK == '' then redis.call('HDEL', SOURCE, 'watermark') end

local opened, at_hand = {}, {}
for _, plan in ipairs(plans) do
  for _, touched in ipairs(plan.candles) do
    if touched.open then
      -- Also one that is open already: what has its window in `due` may be another partition, or nobody any more.
      opened[#opened + 1] = touched.finish
      opened[#opened + 1] = touched.member
      at_hand[touched.member] = touched
    end
  end
end
call_with_many('ZADD', DUE, opened)

local due = {}
if WATERMARK ~= '' and WATERMARK ~= source[3] then due = windows_due(WATERMARK, PAGE) end
if #due > PAGE then due = {} end
local members, lost = {}, {}
for i, window in ipairs(due) do
  local touched = at_hand[window.member]
  local name = NAMESPACE .. 'ohlc:' .. window.member
  local candle = touched and touched.candle or (read_candle(name))
  if candle then
    seal_candle(candle, TO)
    local fields
    if touched then
      touched.open = false
      fields = candle_fields(touched.symbol, touched.interval, touched.start, touched.finish, candle)
    else
      write_sealed(name, candle, EXPIRY)
      fields = due_candle_fields(window.member, window.finish, candle)
    end
    outputs[#outputs + 1] = {offset = TO, fields = fields}
  else
    lost[#lost + 1] = name
  end
  members[i] = window.member
end
call_with_many('ZREM', DUE, members)
if NOTES_CHANGES then
  call_with_many('ZREM', CHANGED, members)
  local changed = {}
  for member, touched in pairs(at_hand) do
    if touched.open and touched.candle[STATUS] == 'open' then
      changed[#changed + 1] = TO
      changed[#changed + 1] = member
    end
  end
  for first = 1, #changed, 1000 do -- NX: the offset of the first change since it was sent
    redis.call('ZADD', CHANGED, 'NX', unpack(changed, first, math.min(first + 999, #changed)))
  end
end

for _, plan in ipairs(plans) do
  if plan.price then redis.call('HSET', plan.name, 'price', plan.price, 'ts', plan.ts, 'source', partition) end
  for _, touched in ipairs(plan.candles) do
    write_candle(touched.name, touched.candle, touched.stored)
    if not touched.open then redis.call('PEXPIRE', touched.name, EXPIRY) end
  end
  if plan.memory then
    for _, rule in pairs(plan.memory.removed) do
      redis.call('ZREM', rule.set, rule.member)
      redis.call('HDEL', plan.memory.opts, rule.id)
      redis.call('HDEL', plan.memory.fired, rule.id)
    end
    if plan.memory.touched then
      for id, ts in pairs(plan.memory.last) do
        if ts then redis.call('HSET', plan.memory.fired, id, int(ts)) end
      end
    end
  end
end
call_with_many('SADD', NAMESPACE .. 'symbols', new_symbols)
local entries, tail = append(outputs, ARGV[5])
return {'OK', entries, tail, next_due(), out_of_order, refused_matches, bad_rules, poisoned, lost}
