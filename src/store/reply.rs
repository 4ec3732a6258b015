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

fn parse_entry(value: Value) -> Option<Entry> {
    let Value::Array(pair) = value else { return None };
    let mut pair = pair.into_iter();
    let id = parse_id(&text_of(pair.next()?)?)?;
    let Value::Array(fields) = pair.next()? else { return None };
    let fields = Fields(fields.into_iter().map(text_of).collect::<Option<Vec<_>>>()?);
    Some(Entry { id, output: fields.output()? })
}

/// Field names and values in turn.
struct Fields(Vec<String>);

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str())
    }

    fn parse<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.parse().ok()
    }

    fn price(&self, name: &str) -> Option<Price> {
        Price::parse(self.get(name)?).ok().map(|parsed| parsed.value)
    }

    fn symbol(&self) -> Option<String> {
        Some(decode_symbol(self.get("symbol")?).into_owned())
    }

    fn output(&self) -> Option<Output> {
        match self.get("kind")? {
            "notification" => self.notification().map(Output::Notification),
            "candle" => self.candle().map(Output::Candle),
            "update" => self.candle().map(Output::Update),
            "late" => self.late().map(Output::Late),
            "dead_letter" => Some(Output::DeadLetter { reason: self.get("reason")?.to_owned() }),
            _ => None,
        }
    }

    fn notification(&self) -> Option<Notification> {
        Some(Notification {
            symbol: self.symbol()?,
            rule: self.get("rule")?.to_owned(),
            trigger: self.parse::<Trigger>("trigger")?,
            op: self.parse::<Op>("op")?,
            threshold: self.price("threshold")?,
            price: self.price("price")?,
            previous: if self.get("previous")?.is_empty() { None } else { Some(self.price("previous")?) },
            ts: self.parse("ts")?,
            index: self.parse("index")?,
            note: self.get("note").map(ToOwned::to_owned),
        })
    }

    fn candle(&self) -> Option<Candle> {
        Some(Candle {
            symbol: self.symbol()?,
            interval: self.parse("interval")?,
            start: self.parse("start")?,
            end: self.parse("end")?,
            open: self.price("open")?,
            high: self.price("high")?,
            low: self.price("low")?,
            close: self.price("close")?,
            volume: self.volume()?,
            count: self.parse("count")?,
            revision: self.parse("revision")?,
        })
    }

    fn late(&self) -> Option<LateTick> {
        Some(LateTick {
            symbol: self.symbol()?,
            price: self.price("price")?,
            volume: self.volume()?,
            ts: self.parse("ts")?,
            index: self.parse("index")?,
            intervals: self.get("intervals")?.split(' ').map(|name| name.parse().ok()).collect::<Option<_>>()?,
        })
    }

    /// A stored sum may be longer than what one tick may say.
    fn volume(&self) -> Option<Volume> {
        Volume::parse_sum(self.get("volume")?).ok()
    }
}
