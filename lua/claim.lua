-- claim: a worker takes a source partition over. New epoch, new token; whoever owned it is fenced from here on.
--
-- ARGV[3] owner, a name for people          ARGV[4] consumer group
-- ARGV[5] fingerprint of the settings that decide state
-- ARGV[6] offset to start at if there is no state, '' to create none
-- ARGV[7] generation that was found, 0 for none, of a topic that was made again: delete what is pending and start a
--         new generation at ARGV[6]; if the generation is another by now, somebody did so already; '' else
-- ARGV[8] delivered offset, '' if unknown   ARGV[9] delivered watermark in ms, '' before the first tick
-- ARGV[10] 'updates' if the updates of that offset are delivered too
-- ARGV[11] 'updates' if this owner sends open candles; else what is noted of their changes is dropped
--
-- Returns {'OK', epoch, next_offset, watermark, tail, max_ts, max_ts_at, now, last_record, fingerprint before,
--          generation, next_due, outbox length, owner before}; absent values are ''. Or
--         {'ABSENT'}        no state, and ARGV[6] is ''; nothing was written
--         {'GROUP', name}   the namespace belongs to another consumer group; nothing was written
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw:changed:ticks/0 tw: 9f… host-1 tickwatch 5d1c '' '' 120 1700000000000 '' ''

local OWNER, GROUP, FINGERPRINT, START, MADE_AGAIN = ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local DELIVERED, DELIVERED_WATERMARK = tonumber(ARGV[8]), tonumber(ARGV[9])
local DELIVERED_UPDATES, SENDS_UPDATES = ARGV[10] == 'updates', ARGV[11] == 'updates'
local PAGE, PAGES = 100, 100 -- entries dropped at most: what is left is muted when sending

local FIELDS = {'epoch', 'next_offset', 'watermark', 'max_ts', 'max_ts_at', 'last_record', 'fingerprint',
  'generation', 'owner'}
local source = {}
for i, value in ipairs(redis.call('HMGET', SOURCE, unpack(FIELDS))) do source[FIELDS[i]] = value or '' end
for _, field in ipairs({'epoch', 'next_offset', 'watermark', 'max_ts', 'max_ts_at', 'generation'}) do
  if source[field] ~= '' and not is_number(source[field]) then
    error({err = 'ERR ' .. no_number(SOURCE, field, source[field])
      .. '; put the right value back, or delete the key: [recovery] on_state_loss then says how to go on'})
  end
end
local generation = tonumber(source.generation) or 0
local RESET = MADE_AGAIN == generation
local group_key = NAMESPACE .. 'group'
local group = redis.call('GET', group_key)
if group and group ~= GROUP then return {'GROUP', group} end
if source.next_offset == '' and START == '' then return {'ABSENT'} end
redis.call('ZCARD', DUE)
redis.call('ZCARD', CHANGED) -- a wrong type is refused before anything is written
outbox_tail()

local function delivered(id, fields)
  local kind, text = fields[1], fields[2]
  local offset = tonumber(id:match('^%d+'))
  if kind ~= 'candle' and kind ~= 'update' then return offset < DELIVERED end
  local finish, revision = text:match('^[^ ]+ [^ ]+ [^ ]+ ([^ ]+) .* ([^ ]+)$')
  local passed = DELIVERED_WATERMARK ~= nil and tonumber(finish) <= DELIVERED_WATERMARK
  if kind == 'update' then
    return offset < DELIVERED or (offset == DELIVERED and DELIVERED_UPDATES) or passed
  end
  -- Sealed by the watermark unless a late tick caused it: such a revision is named by that tick's offset.
  if tonumber(revision) ~= offset + 1 then return passed end
  return offset < DELIVERED
end

local function drop_delivered()
  for _ = 1, PAGES do
    local ids = {}
    local entries = redis.call('XRANGE', OUTBOX, '-', '+', 'COUNT', PAGE)
    for _, entry in ipairs(entries) do
      if not delivered(entry[1], entry[2]) then break end
      ids[#ids + 1] = entry[1]
    end
    if #ids > 0 then redis.call('XDEL', OUTBOX, unpack(ids)) end
    if #ids < PAGE then return end
  end
end

local now = now_ms()
local epoch = int((tonumber(source.epoch) or 0) + 1)
redis.call('HSET', SOURCE, 'epoch', epoch, 'token', TOKEN, 'owner', OWNER, 'group', GROUP, 'seen', int(now),
  'fingerprint', FINGERPRINT)
if not group then redis.call('SET', group_key, GROUP) end
if RESET then
  source.generation = int(generation + 1)
  redis.call('DEL', DUE, OUTBOX)
  redis.call('HDEL', SOURCE, 'watermark', 'max_ts', 'max_ts_at', 'last_record')
  redis.call('HSET', SOURCE, 'generation', source.generation)
  source.watermark, source.max_ts, source.max_ts_at, source.last_record = '', '', '', ''
end
if RESET or source.next_offset == '' or not SENDS_UPDATES then
  redis.call('DEL', CHANGED)
  redis.call('HDEL', SOURCE, 'wave', 'updated_at')
end
if RESET or source.next_offset == '' then
  source.next_offset = START
  redis.call('HSET', SOURCE, 'next_offset', START)
end
-- A reset moves the delivered position back: one that was read before it names outputs of the topic before.
if DELIVERED and source.generation == '' then drop_delivered() end

return {'OK', epoch, source.next_offset, source.watermark, outbox_tail(), source.max_ts, source.max_ts_at, int(now),
  source.last_record, source.fingerprint, source.generation, next_due(), redis.call('XLEN', OUTBOX), source.owner}
