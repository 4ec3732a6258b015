//! One batch of one source partition, ready to be applied: ticks grouped by symbol, partial candles merged.

use super::{Interval, Offset, Price, RecordMark, Volume, Watermark, Window};

/// The effect of the records `[from, to)` on the state, as far as it can be known without the state.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The state's next offset before.
    pub from: Offset,
    /// The state's next offset after.
    pub to: Offset,
    /// The state's watermark before; part of the guard.
    pub watermark_before: Watermark,
    /// The watermark after: greatest of before and (max ts - lateness).
    pub watermark_after: Watermark,
    /// Greatest event time seen in this batch by ticks that count, ms.
    pub max_ts: Option<i64>,
    /// The last record of the batch; `None` if it holds none (a gap).
    pub last_record: Option<RecordMark>,
    /// The ticks by symbol, each symbol once, in order of first appearance.
    pub symbols: Vec<SymbolBatch>,
    /// Outputs known before the state is read, by (offset, index).
    pub extras: Vec<Extra>,
    /// Running counts to add to the source's.
    pub counts: Counts,
}

/// What a batch adds to the running counts of its source partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ticks applied.
    pub ticks: u64,
    /// Ticks late for at least one window.
    pub late: u64,
    /// Records sent to the dead-letter topic, so far as known before applying.
    pub dead_letters: u64,
}

/// The ticks of one symbol and the partial candles made of them.
#[derive(Debug, Clone, PartialEq)]
pub struct SymbolBatch {
    /// The symbol as users write it.
    pub symbol: Box<str>,
    /// Ticks in log order.
    pub ticks: Vec<BatchTick>,
    /// Partial candles, each (interval, window) once; under `revise` each record's late ticks have their own.
    /// On-time partials first, then revising ones in log order.
    pub windows: Vec<Partial>,
}

/// A tick within its symbol's batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchTick {
    /// Offset of its record.
    pub offset: Offset,
    /// Place in its record, from 0.
    pub index: u32,
    /// Event time, ms.
    pub ts: i64,
    /// Price.
    pub price: Price,
}

/// Part of a candle: the ticks of one batch (or one late tick) that fall into one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partial {
    /// The interval.
    pub interval: Interval,
    /// The window.
    pub window: Window,
    /// Price of the tick with the least (ts, order).
    pub open: Price,
    /// Highest price.
    pub high: Price,
    /// Lowest price.
    pub low: Price,
    /// Price of the tick with the greatest (ts, order).
    pub close: Price,
    /// Sum of volumes.
    pub volume: Volume,
    /// Number of ticks.
    pub count: u64,
    /// Event time of the tick behind `open`, ms.
    pub open_ts: i64,
    /// Event time of the tick behind `close`, ms.
    pub close_ts: i64,
    /// For late ticks under `revise`: the offset of their record.
    pub revises: Option<Offset>,
}

/// An output known before the state is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Extra {
    /// Offset of the record that caused it.
    pub offset: Offset,
    /// Place of the tick in its record, from 0.
    pub index: u32,
    /// What it is.
    pub kind: ExtraKind,
}

/// Kinds of [`Extra`].
#[derive(Debug, Clone, PartialEq)]
pub enum ExtraKind {
    /// A late tick, under `divert`.
    Late {
        /// The symbol.
        symbol: Box<str>,
        /// The price.
        price: Price,
        /// The volume.
        volume: Volume,
        /// Event time, ms.
        ts: i64,
        /// The intervals it was late for.
        intervals: Vec<Interval>,
    },
    /// The record goes to the dead-letter topic (a tick too far in the future).
    DeadLetter {
        /// Why, in one sentence.
        reason: String,
    },
}
