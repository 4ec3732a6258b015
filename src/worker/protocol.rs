//! What the state machine of a source partition says and hears. It does no I/O: a shell carries each [`Command`] out
//! and answers with the [`Event`] of the same name.

use std::sync::Arc;

use crate::config::{Guarantee, RecoveryConfig};
use crate::domain::{Batch, Chunk, Entry, Offset, OutboxId, Position, Watermark};
use crate::store::scripts::{Advanced, Applied, Beat, Claim, Claimed, Closed, Guard, Token, Updated};

use super::batching::{BatchSettings, RecordRef};

/// Settings of the protocol.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This worker's name, for people.
    pub owner: String,
    /// The consumer group.
    pub group: String,
    /// Fingerprint of the settings that decide state.
    pub fingerprint: String,
    /// At least once or exactly once.
    pub guarantee: Guarantee,
    /// What to do when something is missing at takeover.
    pub recovery: RecoveryConfig,
    /// Open candles are sent, each at most so often, ms; `None`: they are not.
    pub update_interval: Option<u64>,
    /// How ticks become batches.
    pub batch: BatchSettings,
    /// Least time, ms, that time passes later than the clock on a quiet partition.
    pub idle_grace: i64,
    /// Ticks in a batch at most.
    pub max_batch: usize,
    /// Symbols in a batch at most.
    pub max_symbols: usize,
    /// Outputs applied but not delivered at most.
    pub max_undelivered: usize,
    /// Pause between heartbeats, ms.
    pub heartbeat: u64,
    /// Where a bounded run ends: this offset, with everything closed.
    pub stop_at: Option<Offset>,
}

/// Milliseconds on a clock that never goes back.
pub type Mono = u64;

/// What the machine wants done.
#[derive(Debug, Clone)]
pub enum Command {
    /// Open a transactional producer: fences the owner before and aborts what it left open.
    OpenProducer,
    /// Read the committed offset and its metadata.
    FetchCommitted,
    /// Ask the broker where the log starts and ends, open transactions included.
    AskRange,
    /// Commit where a group starts, before Redis is written for the first time.
    CommitStart(Position),
    /// See whether there is any rule: a rebuild without rules would lose their notifications.
    LookForRules,
    /// Claim the partition in Redis, with a new token (the one in the claim is replaced).
    Claim(Claim),
    /// Read the outbox from the entry after this one.
    ReadOutbox(Option<OutboxId>),
    /// Start reading records at this offset.
    ReadFrom(Offset),
    /// Apply a batch; the flag: it is a single record.
    Apply(Guard, Arc<Batch>, bool),
    /// Close a page of windows.
    Close(Guard),
    /// Send a page of the open candles that changed.
    Update(Guard),
    /// Raise the watermark; with a grace (ms) at most as far as the clock allows.
    Advance(Guard, Watermark, Option<i64>),
    /// Say that the owner is alive, and what holds time back.
    Heartbeat(Guard, Hold),
    /// Send outputs; answered once all are acknowledged (at least once).
    Send(Delivery),
    /// Commit a delivered position (at least once).
    Commit(Position),
    /// Send outputs and commit the position in one transaction (exactly once).
    Transact(Delivery, Position),
    /// Drop delivered outbox entries.
    Trim(Token, OutboxId),
    /// Ask whether the partition is still assigned to this consumer, rebalance events served first.
    CheckAssigned,
    /// Something to log or count.
    Tell(Notice),
    /// The partition is given up: nothing is in flight, everything possible was delivered.
    Release,
}

/// What the machine hears.
#[derive(Debug)]
pub enum Event {
    /// The partition was assigned: take it over.
    Start,
    /// The transactional producer is open.
    ProducerOpen,
    /// The committed position.
    Committed(Committed),
    /// Where the log starts and ends.
    Range {
        /// First offset that still exists.
        start: Offset,
        /// Next offset to be written.
        end: Offset,
    },
    /// The broker did not say where the log starts and ends.
    RangeUnknown(Failure),
    /// The start is committed.
    StartCommitted,
    /// Whether there is any rule.
    Rules(bool),
    /// The answer to a claim, with the token it was made with.
    Claimed(Token, Claimed),
    /// A page of the outbox; empty: that was all.
    Outbox(Vec<Entry>),
    /// Reading has started.
    Reading,
    /// Records, in order.
    Records(Arc<Chunk>),
    /// The reader is at the end of the partition, at this position.
    End(Offset),
    /// The offset asked for does not exist.
    OutOfRange,
    /// The answer to `Apply`.
    Applied(Applied),
    /// The answer to `Close`.
    Closed(Closed),
    /// The answer to `Update`.
    Updated(Updated),
    /// The answer to `Advance`.
    Advanced(Advanced),
    /// The answer to `Heartbeat`.
    Beat(Beat),
    /// All outputs of this ticket are acknowledged.
    Sent(u64),
    /// The position is committed.
    CommitDone,
    /// The transaction is committed.
    Transacted,
    /// The outbox was trimmed.
    Trimmed,
    /// Whether the partition is still assigned.
    Assigned(bool),
    /// A command failed.
    Failed(Failure),
    /// Time has passed.
    Tick,
    /// Finish what is in flight and give the partition up.
    Stop,
}

/// The committed offset of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// None was ever committed, or it expired.
    None,
    /// An offset with our metadata.
    At(Position),
    /// An offset with metadata that is not ours.
    Unreadable(Offset, String),
}

impl Committed {
    /// The delivered position, if it is known.
    pub fn position(&self) -> Option<Position> {
        match self {
            Committed::At(position) => Some(*position),
            Committed::None | Committed::Unreadable(..) => None,
        }
    }
}

/// A command failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What was tried, in words.
    pub what: &'static str,
    /// What went wrong, and the next step.
    pub message: String,
    /// Whether trying again, from the start of the takeover, may help.
    pub transient: bool,
    /// Another owner has fenced this one.
    pub fenced: bool,
    /// Redis said so; otherwise Kafka.
    pub from_redis: bool,
}

/// Outputs on their way.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Names this delivery in the answer.
    pub ticket: u64,
    /// Part of notification ids if above 0.
    pub generation: u64,
    /// The outputs, in order.
    pub outputs: Arc<Vec<Outgoing>>,
}

/// One output on its way.
#[derive(Debug, Clone)]
pub enum Outgoing {
    /// An outbox entry.
    Entry(Entry),
    /// A record to the dead-letter topic.
    DeadLetter {
        /// Its offset.
        offset: Offset,
        /// A short, stable word for metrics.
        kind: &'static str,
        /// Why.
        reason: String,
        /// The record; `None` if it does not exist any more.
        record: Option<RecordRef>,
    },
}

/// What holds time back on a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The state in one word.
    pub state: HoldState,
    /// In words, for people; may be empty.
    pub reason: String,
}

/// The `state` of a source partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    /// Keeps up: time advances with the ticks.
    Current,
    /// Nothing new: time advances with the clock, as far as the grace allows.
    Quiet,
    /// Records wait to be applied, or outputs to be delivered.
    Lagging,
    /// Waiting for evidence that nothing more is there.
    Asking,
    /// Nothing happens until somebody acts.
    Stopped,
}

impl HoldState {
    /// The word in Redis and in listings.
    pub fn as_str(self) -> &'static str {
        match self {
            HoldState::Current => "current",
            HoldState::Quiet => "quiet",
            HoldState::Lagging => "lagging",
            HoldState::Asking => "asking",
            HoldState::Stopped => "stopped",
        }
    }
}

/// Something to log or count. The shell hands it to telemetry.
#[derive(Debug, Clone)]
pub enum Notice {
    /// The partition is ours and its position known.
    TookOver {
        /// Counts owners.
        epoch: u64,
        /// The state position.
        position: Position,
        /// The delivered position.
        delivered: Position,
        /// The owner before.
        previous_owner: String,
        /// The settings that decide state changed since the owner before.
        settings_changed: bool,
    },
    /// A choice that the configuration made about something missing.
    Recovered(String),
    /// A batch was applied.
    Applied {
        /// Its batch.
        batch: Arc<Batch>,
        /// Ticks too far in the future.
        future: u64,
        /// Ticks older than their symbol's last.
        out_of_order: u64,
        /// Firings refused past `max_matches`.
        refused_matches: u64,
        /// Rules that do not parse.
        bad_rules: Vec<String>,
        /// Symbols with a key that cannot be used.
        poisoned: Vec<String>,
    },
    /// A batch had too many outputs and is tried again in halves.
    Split,
    /// Due windows whose candle is gone or cannot be used.
    LostCandles(Vec<String>),
    /// Another worker claimed the partition.
    Fenced,
    /// The state was not where this worker believed (Redis came back older, or somebody wrote to it).
    Moved,
    /// A command failed and the takeover starts over after this many ms.
    Retrying(Failure, u64),
    /// The partition stops until somebody acts.
    Stopped {
        /// A short, stable word for metrics.
        kind: &'static str,
        /// What was found, and the next step.
        reason: String,
    },
    /// A bounded run has reached its end, with everything closed and delivered.
    Finished,
}
