//! Whatever goes wrong or changes hands: each function writes the log line and raises the counter together.
//!
//! Lines that a stream of bad records could repeat are written at most once a kind and ten seconds, with the number
//! `suppressed` since the last; the counters count everything.

use std::time::{Duration, Instant};

use metrics::{counter, gauge};
use rdkafka::types::RDKafkaErrorCode;
use tracing::{debug, error, info, warn};

use super::catalogue;
use super::throttle::Throttle;
use crate::config::LatePolicy;
use crate::domain::{Offset, Position, SourcePartition};
use crate::store::StoreError;

/// What can be wrong with a record, as the label `kind`; `bad_records` kinds of the input, and what applying finds.
pub(super) const DEAD_LETTER_KINDS: [&str; 8] =
    ["json", "size", "symbol", "price", "volume", "ts", "future", "poisoned"];

/// Why a partition is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The group assigned it.
    Assigned,
    /// Another worker had claimed it, but it is still assigned here.
    Fenced,
    /// The state is not where this worker left it: Redis came back older.
    Moved,
    /// The connection to Redis broke.
    Disconnected,
    /// A commit's outcome is unknown.
    CommitUnknown,
}

impl Takeover {
    /// All reasons.
    pub const ALL: [Takeover; 5] =
        [Self::Assigned, Self::Fenced, Self::Moved, Self::Disconnected, Self::CommitUnknown];

    /// The reason as a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Takeover::Assigned => "assigned",
            Takeover::Fenced => "fenced",
            Takeover::Moved => "moved",
            Takeover::Disconnected => "disconnected",
            Takeover::CommitUnknown => "commit_unknown",
        }
    }
}

/// Why a partition is stopped until someone acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A committed offset, but no state.
    StateLoss,
    /// State, but no committed offset.
    OffsetsLost,
    /// The log starts after the position.
    Gap,
    /// The log ends before the position, or is another one.
    Truncation,
    /// The namespace belongs to another group.
    OtherGroup,
    /// A record cannot be decoded, and `bad_records = "block"`.
    BadRecord,
    /// A script failed in a way that is not known.
    Script,
    /// Kafka refuses an output for good, or something else that no retry mends.
    Produce,
}

impl Stop {
    /// All reasons.
    pub const ALL: [Stop; 8] = [
        Self::StateLoss,
        Self::OffsetsLost,
        Self::Gap,
        Self::Truncation,
        Self::OtherGroup,
        Self::BadRecord,
        Self::Script,
        Self::Produce,
    ];

    /// The reason with this label.
    pub fn of(label: &str) -> Stop {
        Self::ALL.into_iter().find(|stop| stop.as_str() == label).unwrap_or(Stop::Produce)
    }

    /// The reason as a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Stop::StateLoss => "state_loss",
            Stop::OffsetsLost => "offsets_lost",
            Stop::Gap => "gap",
            Stop::Truncation => "truncation",
            Stop::OtherGroup => "other_group",
            Stop::BadRecord => "bad_record",
            Stop::Script => "script",
            Stop::Produce => "produce",
        }
    }
}

/// Skipped rules named in one line.
const SHOWN_RULES: usize = 10;

/// Writes a line unless one of its kind was written within the last ten seconds.
macro_rules! throttled {
    ($level:ident, $($line:tt)*) => {{
        static THROTTLE: Throttle = Throttle::new();
        if let Some(suppressed) = THROTTLE.pass(Instant::now()) {
            $level!(suppressed, $($line)*);
        }
    }};
}

/// `count` ticks of a batch were late for at least one window; `policy` says what became of them.
pub fn late_ticks(partition: &SourcePartition, policy: LatePolicy, count: u64) {
    if count == 0 {
        return;
    }
    let (label, became) = match policy {
        LatePolicy::Drop => ("drop", "left out of the candles they were late for"),
        LatePolicy::Divert => ("divert", "sent to the topic of late ticks"),
        LatePolicy::Revise => ("revise", "added to their candles, which are sent again"),
    };
    counter!(catalogue::LATE_TICKS, "policy" => label).increment(count);
    throttled!(warn, %partition, count, "late ticks, {became}; raise [candles] lateness if this goes on");
}

/// `count` ticks of a batch were older than their symbol's last. Common where feeds are merged, so no warning.
pub fn out_of_order_ticks(partition: &SourcePartition, count: u64) {
    if count == 0 {
        return;
    }
    counter!(catalogue::OUT_OF_ORDER).increment(count);
    throttled!(debug, %partition, count, "ticks older than their symbol's last price");
}

/// So far no record of the partition held a tick: rather a wrong `[input]` than a silent market.
pub fn no_ticks(partition: &SourcePartition, records: u64) {
    warn!(%partition, records, "no record so far held a tick; does [input] format fit what is on the topic?");
}

/// The record at `offset` goes to the dead-letter topic. `kind` is a short stable word, `reason` a sentence.
pub fn dead_letter(partition: &SourcePartition, offset: Offset, kind: &'static str, reason: &str) {
    counter!(catalogue::DEAD_LETTERS, "kind" => kind).increment(1);
    throttled!(warn, %partition, %offset, kind, "record sent to the dead-letter topic: {reason}");
}

/// `count` prices of a chunk had more than 15 significant digits.
pub fn rounded_prices(partition: &SourcePartition, count: u64) {
    if count == 0 {
        return;
    }
    counter!(catalogue::ROUNDED_PRICES).increment(count);
    throttled!(info, %partition, count, "prices of more than 15 significant digits were rounded");
}

/// A record with a tick too far in the future; `reason` says how far. It goes to the dead-letter topic.
pub fn future_tick(partition: &SourcePartition, offset: Offset, reason: &str) {
    counter!(catalogue::FUTURE_TICKS).increment(1);
    throttled!(
        warn, %partition, %offset, reason,
        "tick from the future; check the sender's clock, this machine's clock and [input] ts_unit"
    );
}

/// In the batch from offset `from` a tick matched more rules than one tick may fire; `refused` firings did not happen.
pub fn refused_matches(partition: &SourcePartition, from: Offset, refused: u64) {
    counter!(catalogue::REFUSED_MATCHES).increment(refused);
    throttled!(
        warn, %partition, %from, refused,
        "a tick matched more rules than [rules] max_matches; the rest did not fire: raise it, or make the rules edge rules"
    );
}

/// Rules (each `key member`) cannot be read and are skipped; `tickwatch rule list` shows them with the reason.
pub fn bad_rules(rules: &[String]) {
    if rules.is_empty() {
        return;
    }
    counter!(catalogue::BAD_RULES).increment(rules.len() as u64);
    let shown = rules.iter().take(SHOWN_RULES).map(|rule| format!("{rule:?}")).collect::<Vec<_>>().join(", ");
    throttled!(
        warn,
        count = rules.len(),
        "rules are skipped, they do not parse: {shown}; tickwatch rule list says why, remove them with ZREM"
    );
}

/// A symbol has a key that cannot be used (`problem` names both); its ticks go to the dead-letter topic until it is mended.
pub fn poisoned_key(partition: &SourcePartition, problem: &str) {
    counter!(catalogue::POISONED_KEYS).increment(1);
    throttled!(
        error, %partition, problem,
        "a key cannot be used and its symbol stands still; look at it with TYPE and HGETALL, then mend, rename or delete it"
    );
}

/// Another worker owns the partition now.
pub fn fenced(partition: &SourcePartition) {
    counter!(catalogue::FENCED).increment(1);
    info!(%partition, "another worker has claimed this partition");
}

/// The state is not where this worker left it.
pub fn moved(partition: &SourcePartition) {
    counter!(catalogue::MOVED).increment(1);
    warn!(%partition, "the state in Redis has moved under its owner; claiming it again");
}

/// The partition was taken over: it goes on from `state`, what is below `delivered` is muted.
pub fn taken_over(partition: &SourcePartition, reason: Takeover, epoch: u64, state: Position, delivered: Position) {
    let label = reason.as_str();
    counter!(catalogue::TAKEOVERS, "reason" => label).increment(1);
    info!(
        %partition, reason = label, epoch,
        state = %state.offset, delivered = %delivered.offset, watermark = %state.watermark,
        "partition taken over"
    );
}

/// The partition stands still until someone acts; `message` says why and what to do.
pub fn partition_stopped(partition: &SourcePartition, reason: Stop, message: &str) {
    let label = reason.as_str();
    counter!(catalogue::STOPPED, "reason" => label).increment(1);
    error!(%partition, reason = label, "partition stopped: {message}");
}

/// A call to Redis failed; `doing` says which, such as `apply`.
pub fn redis_error(doing: &str, error: &StoreError) {
    let kind = error.kind();
    counter!(catalogue::REDIS_ERRORS, "kind" => kind).increment(1);
    throttled!(warn, kind, "Redis failed at {doing}: {error}");
}

/// The Kafka client told of an error.
pub fn kafka_error(code: RDKafkaErrorCode, reason: &str) {
    use RDKafkaErrorCode as Code;
    let kind = match code {
        Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve | Code::NetworkException => {
            "connection"
        }
        Code::RequestTimedOut | Code::OperationTimedOut | Code::MessageTimedOut => "timeout",
        Code::Fatal => "fatal",
        _ => "other",
    };
    counter!(catalogue::KAFKA_ERRORS, "kind" => kind).increment(1);
    throttled!(warn, kind, "Kafka: {reason}");
}

/// Kafka did not take an output.
pub fn produce_error(partition: &SourcePartition, error: &str) {
    counter!(catalogue::PRODUCE_ERRORS).increment(1);
    throttled!(warn, %partition, "an output was not taken: {error}");
}

/// The delivered position was not committed, or it is unknown whether it was.
pub fn commit_error(partition: &SourcePartition, error: &str) {
    counter!(catalogue::COMMIT_ERRORS).increment(1);
    throttled!(warn, %partition, "the delivered position was not committed: {error}");
}

/// A takeover starts over after a pause; what failed was counted where it happened.
pub fn retrying(partition: &SourcePartition, doing: &str, error: &str, pause: Duration) {
    throttled!(warn, %partition, ?pause, "{doing}: {error}; trying again");
}

/// The settings that decide state are not those of the owner before.
pub fn settings_changed(partition: &SourcePartition) {
    warn!(%partition, "the settings that decide state (intervals, lateness, late, keep, input) have changed since the owner before");
}

/// Something was missing at takeover, and the configuration says to go on.
pub fn recovered(partition: &SourcePartition, what: &str) {
    counter!(catalogue::RECOVERIES).increment(1);
    warn!(%partition, "{what}");
}

/// Windows were due whose key held no candle: it was deleted, or is of another type.
pub fn lost_candles(partition: &SourcePartition, keys: &[String]) {
    counter!(catalogue::LOST_CANDLES).increment(keys.len() as u64);
    throttled!(error, %partition, count = keys.len(), first = keys.first(), "due windows without a candle; nothing is sent for them");
}

/// Whether nothing is against this worker's being ready.
pub fn ready(ready: bool) {
    gauge!(catalogue::READY).set(f64::from(u8::from(ready)));
}

/// This worker owns `count` partitions now.
pub fn partitions_owned(count: usize) {
    gauge!(catalogue::PARTITIONS_OWNED).set(count as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Watermark;

    #[test]
    fn an_event_raises_its_counter_by_its_label() {
        let partition = SourcePartition { topic: "t".into(), partition: 0 };
        let nowhere = Position::at(Offset(0), Watermark::NEVER);
        let recorder = catalogue::recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            late_ticks(&partition, LatePolicy::Divert, 3);
            for offset in 0..3 {
                dead_letter(&partition, Offset(offset), "price", "price \"x\" is not a decimal number");
            }
            taken_over(&partition, Takeover::Moved, 7, nowhere, nowhere);
            partition_stopped(&partition, Stop::Gap, "records are missing");
            redis_error("apply", &StoreError::Away("connection reset".into()));
            kafka_error(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        });
        let page = handle.render();
        for line in [
            "tickwatch_late_ticks_total{policy=\"divert\"} 3",
            "tickwatch_dead_letters_total{kind=\"price\"} 3",
            "tickwatch_takeovers_total{reason=\"moved\"} 1",
            "tickwatch_partitions_stopped_total{reason=\"gap\"} 1",
            "tickwatch_redis_errors_total{kind=\"away\"} 1",
            "tickwatch_kafka_errors_total{kind=\"connection\"} 1",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
