//! Where in a source partition something is: offsets, watermarks, and the pair of both.

use std::fmt;

/// One partition of the source topic, `<topic>/<partition>` in keys, records and messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePartition {
    /// The source topic's name.
    pub topic: String,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl fmt::Display for SourcePartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// An offset in a source partition. As a position it means "next to read".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub i64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Event time up to which a source partition is complete, in milliseconds since the epoch.
///
/// A window whose end is at or below the watermark is due to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(i64);

impl Watermark {
    /// Before the first tick: no window is due.
    pub const NEVER: Watermark = Watermark(i64::MIN);

    /// The watermark at `ms` milliseconds since the epoch.
    pub fn at(ms: i64) -> Watermark {
        Watermark(ms)
    }

    /// Milliseconds since the epoch, or `None` before the first tick.
    pub fn ms(self) -> Option<i64> {
        (self != Self::NEVER).then_some(self.0)
    }

    /// Whether a window that ends at `end` (ms) is due.
    pub fn passes(self, end: i64) -> bool {
        end <= self.0
    }
}

/// Plain milliseconds; empty before the first tick (the form in Redis and in Kafka's commit metadata).
impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ms().map_or(Ok(()), |ms| ms.fmt(f))
    }
}

/// A position has two coordinates: the next offset and the watermark there.
///
/// The *state position* is in Redis, the *delivered position* in Kafka. Order is by offset, then watermark; updates of
/// candles move neither, so a delivered position says whether those of its offset are behind it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The next offset to apply, or to deliver.
    pub offset: Offset,
    /// The watermark at that offset.
    pub watermark: Watermark,
    /// Of a delivered position: every update filed under `offset` is delivered. Else false.
    pub updates: bool,
}

impl Position {
    /// Before any update under `offset`.
    pub const fn at(offset: Offset, watermark: Watermark) -> Position {
        Position { offset, watermark, updates: false }
    }
}

/// What identifies the last applied record, kept beside the state so that a topic that was deleted and made
/// again is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordMark {
    /// The record's offset.
    pub offset: Offset,
    /// The broker's timestamp of the record, in ms.
    pub timestamp: i64,
    /// CRC-32 of the record's key and value.
    pub checksum: u32,
}
