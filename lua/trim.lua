-- trim: drops delivered entries from the head of the outbox. Guarded by the token alone: what was delivered stays
-- delivered, whatever the position is by now.
--
-- ARGV[3] first id to keep: the last delivered one, plus one
--
-- Returns {'OK', entries dropped} or {'FENCED'}.
--
-- Example: EVALSHA … 4 tw:source:ticks/0 … tw: 9f… 120-2

if redis.call('HGET', SOURCE, 'token') ~= TOKEN then return {'FENCED'} end
return {'OK', redis.call('XTRIM', OUTBOX, 'MINID', ARGV[3])}
