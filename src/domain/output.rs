//! What leaves the service: entries of the outbox, and the one rule that says which were delivered already.

use super::{Interval, Offset, Op, Position, Price, Trigger, Volume};

/// Id of an outbox entry: `<offset>-<n>`, n from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutboxId {
    /// The source offset that caused the output; for a final candle, and for an update, the state's next offset then.
    pub offset: Offset,
    /// Counts the entries of one offset, from 1.
    pub n: u64,
}

impl std::fmt::Display for OutboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.offset, self.n)
    }
}

/// One entry of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where it stands in the outbox.
    pub id: OutboxId,
    /// What is to be sent.
    pub output: Output,
}

/// An output that depends on state or on a clock.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A rule fired.
    Notification(Notification),
    /// A window was closed, or a late tick revised it.
    Candle(Candle),
    /// A window that is still open, as it stands: with the ticks of all offsets below the entry's.
    Update(Candle),
    /// A tick too late for its windows, under the policy `divert`.
    Late(LateTick),
    /// A record that goes to the dead-letter topic for a reason found while applying it.
    DeadLetter {
        /// Why, in one sentence.
        reason: String,
    },
}

/// A rule fired at a tick.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// The symbol.
    pub symbol: String,
    /// The rule's id.
    pub rule: String,
    /// Edge or level.
    pub trigger: Trigger,
    /// The rule's operator.
    pub op: Op,
    /// The rule's threshold.
    pub threshold: Price,
    /// The price that fired it.
    pub price: Price,
    /// The symbol's price before that tick; `None` at its first.
    pub previous: Option<Price>,
    /// The tick's event time, ms.
    pub ts: i64,
    /// The tick's place in its record, from 0.
    pub index: u32,
    /// The rule's note.
    pub note: Option<String>,
}

/// A candle as it is sent: `revision` 0 is the final one, or an update before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candle {
    /// The symbol.
    pub symbol: String,
    /// The interval.
    pub interval: Interval,
    /// Start of the window, ms, inclusive.
    pub start: i64,
    /// End of the window, ms, exclusive.
    pub end: i64,
    /// Price of the tick with the least (ts, offset).
    pub open: Price,
    /// Highest price.
    pub high: Price,
    /// Lowest price.
    pub low: Price,
    /// Price of the tick with the greatest (ts, offset).
    pub close: Price,
    /// Sum of volumes.
    pub volume: Volume,
    /// Number of ticks.
    pub count: u64,
    /// 0 for the final candle and before it; the offset + 1 of the late record that caused the revision; or the next offset when a
    /// candle that was sent before got on-time ticks again (its symbol moved between partitions) and closed anew.
    pub revision: i64,
}

/// A late tick on its way to `<topic>.late`.
#[derive(Debug, Clone, PartialEq)]
pub struct LateTick {
    /// The symbol.
    pub symbol: String,
    /// The price.
    pub price: Price,
    /// The volume.
    pub volume: Volume,
    /// Event time, ms.
    pub ts: i64,
    /// The tick's place in its record, from 0.
    pub index: u32,
    /// The intervals whose windows had closed.
    pub intervals: Vec<Interval>,
}

impl Entry {
    /// Whether this output was delivered already, given the delivered position.
    ///
    /// A candle sealed by the watermark is delivered if its end is at or below the delivered watermark; everything
    /// else, tied to an offset, is delivered if that offset is below the delivered one. An update is also behind its
    /// final candle, and behind a delivered position of its very offset that says so.
    pub fn is_delivered(&self, delivered: Position) -> bool {
        match &self.output {
            Output::Candle(candle) if candle.revision != self.id.offset.0 + 1 => {
                delivered.watermark.passes(candle.end)
            }
            Output::Update(candle) => {
                let behind = self.id.offset == delivered.offset && delivered.updates;
                self.id.offset < delivered.offset || behind || delivered.watermark.passes(candle.end)
            }
            _ => self.id.offset < delivered.offset,
        }
    }
}
