//! What a partition's task tells telemetry and readiness. The state machine knows neither.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::machine::{Phase, Snapshot};
use super::protocol::{Failure, HoldState, Notice, Outgoing};
use crate::config::LatePolicy;
use crate::domain::{Batch, Chunk, ExtraKind, Output, SourcePartition};
use crate::http::Health;
use crate::store::StoreError;
use crate::telemetry::events::{self, Stop, Takeover};
use crate::telemetry::{PartitionMetrics, PartitionState};

/// Span over which the share of future ticks is judged.
const CLOCK_SPAN: Duration = Duration::from_mins(1);

/// Ticks needed for that judgement: a single odd tick is no evidence about a clock.
const CLOCK_TICKS: u64 = 10;

/// What a run has done, over all partitions of a worker.
#[derive(Debug, Default)]
pub struct Totals {
    /// Ticks applied.
    pub ticks: AtomicU64,
    /// Notifications delivered.
    pub notifications: AtomicU64,
    /// Candles delivered, revisions included.
    pub candles: AtomicU64,
    /// Ticks late for a window.
    pub late: AtomicU64,
    /// Records sent to the dead-letter topic.
    pub dead_letters: AtomicU64,
}

/// What all reporters of a worker share.
#[derive(Debug)]
pub struct Shared {
    /// Readiness.
    pub health: Health,
    /// Totals of the run.
    pub totals: Totals,
    late: LatePolicy,
    clock: Mutex<ClockWatch>,
}

impl Shared {
    /// For one worker.
    pub fn new(health: Health, late: LatePolicy) -> Shared {
        Shared { health, totals: Totals::default(), late, clock: Mutex::new(ClockWatch::default()) }
    }
}

/// More than half of a minute's ticks in the future: rather this machine's clock is wrong than all of theirs.
#[derive(Debug, Default)]
struct ClockWatch {
    since: Option<Instant>,
    ticks: u64,
    future: u64,
}

impl ClockWatch {
    /// Counts; the verdict so far: whether the clock is to be doubted.
    fn count(&mut self, now: Instant, ticks: u64, future: u64) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) > CLOCK_SPAN) {
            *self = ClockWatch { since: Some(now), ticks: 0, future: 0 };
        }
        self.ticks += ticks + future;
        self.future += future;
        self.ticks >= CLOCK_TICKS && self.future * 2 > self.ticks
    }
}

/// The reporter of one partition.
#[derive(Clone)]
pub struct Reporter {
    partition: SourcePartition,
    shared: Arc<Shared>,
    metrics: Arc<PartitionMetrics>,
    reason: Arc<Mutex<Takeover>>,
    seen: Arc<Seen>,
}

/// Running counts of one partition while it is owned.
#[derive(Debug, Default)]
struct Seen {
    ticks: AtomicU64,
    late: AtomicU64,
    /// Records that were read well and held no tick.
    empty: AtomicU64,
    told_empty: AtomicBool,
}

/// So many records without a single tick are no accident.
const EMPTY_RECORDS: u64 = 1_000;

impl Reporter {
    /// For `partition`, just assigned.
    pub fn new(partition: SourcePartition, shared: Arc<Shared>) -> Reporter {
        let metrics = Arc::new(PartitionMetrics::new(&partition));
        let reason = Arc::new(Mutex::new(Takeover::Assigned));
        Reporter { partition, shared, metrics, reason, seen: Arc::default() }
    }

    /// A chunk was received.
    pub fn received(&self, chunk: &Chunk) {
        events::rounded_prices(&self.partition, chunk.rounded);
        self.kafka_answers();
        let empty = chunk.records.iter().filter(|record| record.bad.is_none() && record.ticks.is_empty()).count();
        let empty = self.seen.empty.fetch_add(empty as u64, Ordering::Relaxed) + empty as u64;
        if empty >= EMPTY_RECORDS
            && self.seen.ticks.load(Ordering::Relaxed) == 0
            && chunk.ticks.is_empty()
            && !self.seen.told_empty.swap(true, Ordering::Relaxed)
        {
            events::no_ticks(&self.partition, empty);
        }
    }

    /// How many records lie between the state position and the end.
    pub fn lag(&self, records: i64) {
        self.metrics.set_lag(records.max(0) as u64);
    }

    /// Kafka does what it is asked.
    pub fn kafka_answers(&self) {
        self.shared.health.set_kafka(Ok::<(), String>(()));
    }

    /// Redis does what it is asked.
    pub fn redis_answers(&self) {
        self.shared.health.set_redis(Ok::<(), String>(()));
    }

    /// Redis does not.
    pub fn redis_failed(&self, doing: &str, error: &StoreError) {
        events::redis_error(doing, error);
        self.shared.health.set_redis(Err(error));
        self.why(Takeover::Disconnected);
    }

    /// Kafka did not take an output.
    pub fn produce_failed(&self, error: &str) {
        events::produce_error(&self.partition, error);
    }

    /// A batch was applied in this time.
    pub fn applied_in(&self, ticks: u64, took: Duration) {
        self.metrics.applied(ticks, took);
    }

    /// Outputs were acknowledged in this time.
    pub fn delivered(&self, outputs: &[Outgoing], took: Duration) {
        let totals = &self.shared.totals;
        for output in outputs {
            match output {
                Outgoing::Entry(entry) => {
                    self.metrics.delivered(&entry.output);
                    match entry.output {
                        Output::Notification(_) => add(&totals.notifications, 1),
                        Output::Candle(_) => add(&totals.candles, 1),
                        Output::Update(_) | Output::Late(_) | Output::DeadLetter { .. } => {}
                    }
                }
                Outgoing::DeadLetter { offset, kind, reason, .. } => {
                    add(&totals.dead_letters, 1);
                    events::dead_letter(&self.partition, *offset, kind, reason);
                }
            }
        }
        if !outputs.is_empty() {
            self.metrics.batch_delivered(took);
        }
        self.kafka_answers();
    }

    fn why(&self, reason: Takeover) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Logs or counts a notice.
    pub fn tell(&self, notice: Notice) {
        let partition = &self.partition;
        match notice {
            Notice::TookOver { epoch, position, delivered, previous_owner, settings_changed } => {
                let reason = *self.reason.lock().unwrap_or_else(PoisonError::into_inner);
                events::taken_over(partition, reason, epoch, position, delivered);
                tracing::debug!(%partition, previous_owner, "owner before");
                if settings_changed {
                    events::settings_changed(partition);
                }
                self.shared.health.set_partition(partition.partition, None);
            }
            Notice::Recovered(text) => events::recovered(partition, &text),
            Notice::Applied { batch, future, out_of_order, refused_matches, bad_rules, poisoned } => {
                self.applied(&batch, future);
                events::out_of_order_ticks(partition, out_of_order);
                if refused_matches > 0 {
                    events::refused_matches(partition, batch.from, refused_matches);
                }
                events::bad_rules(&bad_rules);
                for symbol in poisoned {
                    events::poisoned_key(partition, &symbol);
                }
            }
            Notice::Split => tracing::debug!(%partition, "a batch had too many outputs; it is tried in halves"),
            Notice::LostCandles(keys) => events::lost_candles(partition, &keys),
            Notice::Fenced => {
                self.why(Takeover::Fenced);
                events::fenced(partition);
            }
            Notice::Moved => {
                self.why(Takeover::Moved);
                events::moved(partition);
            }
            Notice::Retrying(failure, pause) => self.retrying(&failure, pause),
            Notice::Stopped { kind, reason } => {
                events::partition_stopped(partition, Stop::of(kind), &reason);
                self.shared.health.set_partition(partition.partition, Some(reason));
            }
            Notice::Finished => tracing::info!(%partition, "reached the end, everything closed and delivered"),
        }
    }

    fn retrying(&self, failure: &Failure, pause: u64) {
        let Failure { what, message, .. } = failure;
        if what.starts_with("commit") {
            self.why(Takeover::CommitUnknown);
            events::commit_error(&self.partition, message);
        }
        events::retrying(&self.partition, what, message, Duration::from_millis(pause));
    }

    fn applied(&self, batch: &Batch, future: u64) {
        let totals = &self.shared.totals;
        add(&totals.ticks, batch.counts.ticks);
        add(&totals.late, batch.counts.late);
        events::late_ticks(&self.partition, self.shared.late, batch.counts.late);
        add(&self.seen.ticks, batch.counts.ticks);
        add(&self.seen.late, batch.counts.late);
        self.metrics
            .set_late_ratio(self.seen.late.load(Ordering::Relaxed), self.seen.ticks.load(Ordering::Relaxed));
        for extra in &batch.extras {
            if let ExtraKind::DeadLetter { reason } = &extra.kind {
                events::future_tick(&self.partition, extra.offset, reason);
            }
        }
        let mut clock = self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let doubted = clock.count(Instant::now(), batch.counts.ticks, future);
        self.shared.health.set_clock(if doubted {
            Err("more than half of the last minute's ticks are in the future: check this machine's clock")
        } else {
            Ok(())
        });
    }

    /// Publishes what the partition looks like.
    pub fn gauges(&self, snapshot: &Snapshot) {
        self.metrics.set_outbox(snapshot.undelivered as u64);
        self.metrics.set_state(match snapshot.hold.state {
            HoldState::Current => PartitionState::Current,
            HoldState::Quiet => PartitionState::Quiet,
            HoldState::Lagging => PartitionState::Lagging,
            HoldState::Asking => PartitionState::Asking,
            HoldState::Stopped => PartitionState::Stopped,
        });
        if let Some(watermark) = snapshot.position.and_then(|position| position.watermark.ms())
            && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        {
            let behind = (now.as_millis() as i64 - watermark).max(0);
            self.metrics.set_watermark_lag(Duration::from_millis(behind as u64));
        }
    }

    /// The deadline of a graceful stop has passed.
    pub fn gave_up(&self, deadline: Duration) {
        tracing::warn!(
            partition = %self.partition, ?deadline,
            "not all of what was in flight could be delivered in time; the next owner goes on from the outbox"
        );
    }

    /// The partition is not this worker's any more.
    pub fn released(&self, phase: &Phase) {
        self.shared.health.set_partition(self.partition.partition, None);
        tracing::info!(partition = %self.partition, ?phase, "partition given up");
    }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
