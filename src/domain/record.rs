//! Records as they come from the source topic, decoded: a [`Chunk`] is one poll's worth of one partition.
//!
//! A chunk owns its bytes and its symbols once, so that a tick costs no allocation of its own.

use std::ops::Range;

use super::{Offset, Price, RecordMark, Volume};

/// Records of one source partition in offset order, with the ticks decoded from them.
#[derive(Debug, Default, Clone)]
pub struct Chunk {
    /// The records, offsets strictly increasing (gaps are legal: control records, compaction).
    pub records: Vec<Record>,
    /// The ticks of all records, in order; a record points at its own.
    pub ticks: Vec<Tick>,
    /// The symbols met in this chunk; a tick points at its own.
    pub symbols: Vec<Box<str>>,
    /// Prices that had more than 15 significant digits and were rounded.
    pub rounded: u64,
    /// Keys and values of all records; a record points at its own.
    pub bytes: Vec<u8>,
}

/// One record of the source topic.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp in ms (create or append time, as the topic says); -1 if there is none.
    pub timestamp: i64,
    /// Whether `timestamp` was set by the broker (LogAppendTime).
    pub broker_time: bool,
    /// CRC-32 of key and value.
    pub checksum: u32,
    /// Its ticks, a range of [`Chunk::ticks`]; may be empty (a subscription message, a heartbeat).
    pub ticks: Range<u32>,
    /// Why it could not be decoded; then it has no ticks.
    pub bad: Option<Box<BadRecord>>,
    /// Key bytes, a range of [`Chunk::bytes`].
    pub key: Option<Range<u32>>,
    /// Value bytes, a range of [`Chunk::bytes`].
    pub value: Option<Range<u32>>,
    /// Headers, kept for the dead-letter topic.
    pub headers: Option<Box<Headers>>,
}

/// Header names and values, in order.
pub type Headers = Vec<(String, Option<Vec<u8>>)>;

/// Why a record could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRecord {
    /// A short, stable word for metrics: `json`, `price`, `ts`, `symbol`, ….
    pub kind: &'static str,
    /// One sentence for people: what is wrong and where.
    pub reason: String,
}

/// One trade or quote: a symbol had a price at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Index into [`Chunk::symbols`].
    pub symbol: u32,
    /// The price.
    pub price: Price,
    /// The traded volume; zero if the record had none.
    pub volume: Volume,
    /// Event time, ms since the epoch.
    pub ts: i64,
}

impl Chunk {
    /// The ticks of `record`.
    pub fn ticks_of(&self, record: &Record) -> &[Tick] {
        &self.ticks[record.ticks.start as usize..record.ticks.end as usize]
    }

    /// The symbol of `tick`.
    pub fn symbol_of(&self, tick: &Tick) -> &str {
        &self.symbols[tick.symbol as usize]
    }

    /// About what it takes of memory, bytes.
    pub fn weight(&self) -> usize {
        let headers = |headers: &Headers| -> usize {
            headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len)).sum()
        };
        let headers: usize = self.records.iter().filter_map(|record| record.headers.as_deref()).map(headers).sum();
        self.bytes.len() + headers + self.records.len() * size_of::<Record>() + self.ticks.len() * size_of::<Tick>()
    }

    /// The bytes behind a key's or value's range.
    pub fn slice(&self, range: &Range<u32>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }
}

impl Record {
    /// What identifies this record.
    pub fn mark(&self) -> RecordMark {
        RecordMark { offset: self.offset, timestamp: self.timestamp, checksum: self.checksum }
    }
}
