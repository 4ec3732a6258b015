//! Script replies, read field by field. Numbers come as text: Lua replies truncate doubles.

use redis::Value;

use super::error::StoreError;
use super::keys::decode_symbol;
use crate::domain::output::{Candle, LateTick, Notification};
use crate::domain::{Entry, Offset, Op, OutboxId, Output, Price, RecordMark, Trigger, Volume, Watermark};

/// A reply, taken apart from the front.
pub(super) struct Reply {
    call: &'static str,
    items: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn new(call: &'static str, items: Vec<Value>) -> Reply {
        Reply { call, items: items.into_iter() }
    }

    pub(super) fn malformed(&self, expected: &'static str) -> StoreError {
        StoreError::Reply { call: self.call, expected }
    }

    fn take<T>(&mut self, expected: &'static str, read: impl FnOnce(Value) -> Option<T>) -> Result<T, StoreError> {
        self.items.next().and_then(read).ok_or(StoreError::Reply { call: self.call, expected })
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        self.take("a text", text_of)
    }

    pub(super) fn whole(&mut self) -> Result<i64, StoreError> {
        self.take("a whole number", |value| text_of(value)?.parse().ok())
    }

    /// A whole number, or `None` where the text is empty.
    pub(super) fn optional(&mut self) -> Result<Option<i64>, StoreError> {
        self.take("a whole number or nothing", |value| {
            let text = text_of(value)?;
            if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
        })
    }

    pub(super) fn watermark(&mut self) -> Result<Watermark, StoreError> {
        Ok(self.optional()?.map_or(Watermark::NEVER, Watermark::at))
    }

    pub(super) fn outbox_id(&mut self) -> Result<OutboxId, StoreError> {
        self.take("an outbox id", |value| parse_id(&text_of(value)?))
    }

    pub(super) fn record_mark(&mut self) -> Result<Option<RecordMark>, StoreError> {
        self.take("a record mark or nothing", |value| {
            let text = text_of(value)?;
            if text.is_empty() { Some(None) } else { parse_mark(&text).map(Some) }
        })
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, StoreError> {
        self.take("a list of texts", |value| match value {
            Value::Array(items) => items.into_iter().map(text_of).collect(),
            _ => None,
        })
    }

    pub(super) fn entries(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.take("outbox entries", parse_entries)
    }
}

fn text_of(value: Value) -> Option<String> {
    match value {
        // A rule's id or note is whatever bytes somebody put there by hand.
        Value::BulkString(bytes) => {
            Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
        }
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK".to_owned()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

fn parse_id(text: &str) -> Option<OutboxId> {
    let (offset, n) = text.split_once('-')?;
    Some(OutboxId { offset: Offset(offset.parse().ok()?), n: n.parse().ok()? })
}

fn parse_mark(text: &str) -> Option<RecordMark> {
    let mut parts = text.split(' ');
    let mark = RecordMark {
        offset: Offset(parts.next()?.parse().ok()?),
        timestamp: parts.next()?.parse().ok()?,
        checksum: u32::from_str_radix(parts.next()?, 16).ok()?,
    };
    parts.next().is_none().then_some(mark)
}

/// Entries in the form of XRANGE: `[[id, [field, value, …]], …]`.
pub(super) fn parse_entries(value: Value) -> Option<Vec<Entry>> {
    let Value::Array(items) = value else { return None };
    items.into_iter().map(parse_entry).collect()
}

/// lua/lib/common.lua says what an entry holds.
fn parse_entry(value: Value) -> Option<Entry> {
    let Value::Array(pair) = value else { return None };
    let mut pair = pair.into_iter();
    let id = parse_id(&text_of(pair.next()?)?)?;
    let Value::Array(fields) = pair.next()? else { return None };
    let mut fields = fields.into_iter().map(text_of);
    let (kind, text) = (fields.next()??, fields.next()??);
    let output = match kind.as_str() {
        "notification" => Output::Notification(notification(&text, fields.nth(1).flatten())?),
        "candle" => Output::Candle(candle(&text)?),
        "update" => Output::Update(candle(&text)?),
        "late" => Output::Late(late_tick(&text)?),
        "dead_letter" => Output::DeadLetter { reason: text },
        _ => return None,
    };
    Some(Entry { id, output })
}

/// The words of an entry.
struct Words<'a>(std::str::SplitN<'a, char>);

impl<'a> Words<'a> {
    /// So many; the last one is the rest.
    fn of(text: &'a str, words: usize) -> Words<'a> {
        Words(text.splitn(words, ' '))
    }

    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn parse<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    fn symbol(&mut self) -> Option<String> {
        Some(decode_symbol(self.next()?).into_owned())
    }

    fn price(&mut self) -> Option<Price> {
        price(self.next()?)
    }

    /// A stored sum may be longer than what one tick may say.
    fn volume(&mut self) -> Option<Volume> {
        Volume::parse_sum(self.next()?).ok()
    }
}

fn price(text: &str) -> Option<Price> {
    Price::parse(text).ok().map(|parsed| parsed.value)
}

fn notification(text: &str, note: Option<String>) -> Option<Notification> {
    let mut words = Words::of(text, 9);
    Some(Notification {
        symbol: words.symbol()?,
        trigger: words.parse::<Trigger>()?,
        op: words.parse::<Op>()?,
        threshold: words.price()?,
        price: words.price()?,
        previous: match words.next()? {
            "-" => None,
            text => Some(price(text)?),
        },
        ts: words.parse()?,
        index: words.parse()?,
        rule: words.next()?.to_owned(),
        note,
    })
}

fn candle(text: &str) -> Option<Candle> {
    let mut words = Words::of(text, 11);
    Some(Candle {
        symbol: words.symbol()?,
        interval: words.parse()?,
        start: words.parse()?,
        end: words.parse()?,
        open: words.price()?,
        high: words.price()?,
        low: words.price()?,
        close: words.price()?,
        volume: words.volume()?,
        count: words.parse()?,
        revision: words.parse()?,
    })
}

fn late_tick(text: &str) -> Option<LateTick> {
    let mut words = Words::of(text, 6);
    Some(LateTick {
        symbol: words.symbol()?,
        price: words.price()?,
        volume: words.volume()?,
        ts: words.parse()?,
        index: words.parse()?,
        intervals: words.next()?.split(' ').map(|name| name.parse().ok()).collect::<Option<_>>()?,
    })
}
