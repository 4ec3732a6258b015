//! Metrics of one owned source partition, as handles: the hot path looks nothing up.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue;
use crate::domain::{Output, SourcePartition, Trigger};

/// What holds a partition's time back, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionState {
    /// Ticks arrive and are applied as they come.
    Current,
    /// Nothing more here, and no window waits.
    Quiet,
    /// Records wait to be applied.
    Lagging,
    /// A window waits and the broker is asked for the end.
    Asking,
    /// Stopped until someone acts.
    Stopped,
}

impl PartitionState {
    /// All five.
    pub const ALL: [PartitionState; 5] = [Self::Current, Self::Quiet, Self::Lagging, Self::Asking, Self::Stopped];

    /// The state's name in Redis and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            PartitionState::Current => "current",
            PartitionState::Quiet => "quiet",
            PartitionState::Lagging => "lagging",
            PartitionState::Asking => "asking",
            PartitionState::Stopped => "stopped",
        }
    }
}

/// Handles to the metrics of one partition while it is owned. Dropped, its gauges go to zero: what they said is
/// the next owner's to say.
pub struct PartitionMetrics {
    ticks: Counter,
    batches: Counter,
    edge_notifications: Counter,
    level_notifications: Counter,
    final_candles: Counter,
    revised_candles: Counter,
    open_candles: Counter,
    apply_seconds: Histogram,
    batch_ticks: Histogram,
    delivery_seconds: Histogram,
    lag: Gauge,
    watermark_lag: Gauge,
    outbox: Gauge,
    late_ratio: Gauge,
    states: [(PartitionState, Gauge); 5],
}

impl PartitionMetrics {
    /// The handles of `partition`; its gauges appear with this.
    pub fn new(partition: &SourcePartition) -> PartitionMetrics {
        let number = partition.partition.to_string();
        let of_partition = |name: &'static str| gauge!(name, "partition" => number.clone());
        let metrics = PartitionMetrics {
            ticks: counter!(catalogue::TICKS),
            batches: counter!(catalogue::BATCHES),
            edge_notifications: counter!(catalogue::NOTIFICATIONS, "trigger" => "edge"),
            level_notifications: counter!(catalogue::NOTIFICATIONS, "trigger" => "level"),
            final_candles: counter!(catalogue::CANDLES, "status" => "final"),
            revised_candles: counter!(catalogue::CANDLES, "status" => "revised"),
            open_candles: counter!(catalogue::CANDLES, "status" => "open"),
            apply_seconds: histogram!(catalogue::APPLY_SECONDS),
            batch_ticks: histogram!(catalogue::BATCH_TICKS),
            delivery_seconds: histogram!(catalogue::DELIVERY_SECONDS),
            lag: of_partition(catalogue::LAG),
            watermark_lag: of_partition(catalogue::WATERMARK_LAG),
            outbox: of_partition(catalogue::OUTBOX),
            late_ratio: of_partition(catalogue::LATE_RATIO),
            states: PartitionState::ALL.map(|state| {
                let state_name = state.as_str();
                (state, gauge!(catalogue::STATE, "partition" => number.clone(), "state" => state_name))
            }),
        };
        metrics.reset();
        metrics
    }

    /// A batch of `ticks` ticks was applied; Redis took `took` to answer.
    pub fn applied(&self, ticks: u64, took: Duration) {
        self.ticks.increment(ticks);
        self.batches.increment(1);
        self.batch_ticks.record(ticks as f64);
        self.apply_seconds.record(took);
    }

    /// `output` was acknowledged by Kafka. Late ticks and dead letters are counted where they are found.
    pub fn delivered(&self, output: &Output) {
        match output {
            Output::Notification(notification) => match notification.trigger {
                Trigger::Edge => self.edge_notifications.increment(1),
                Trigger::Level => self.level_notifications.increment(1),
            },
            Output::Candle(candle) if candle.revision == 0 => self.final_candles.increment(1),
            Output::Candle(_) => self.revised_candles.increment(1),
            Output::Update(_) => self.open_candles.increment(1),
            Output::Late(_) | Output::DeadLetter { .. } => {}
        }
    }

    /// All outputs of a batch were acknowledged, `took` after Redis had answered.
    pub fn batch_delivered(&self, took: Duration) {
        self.delivery_seconds.record(took);
    }

    /// Records between the state position and the end.
    pub fn set_lag(&self, records: u64) {
        self.lag.set(records as f64);
    }

    /// How far the watermark is behind the clock.
    pub fn set_watermark_lag(&self, lag: Duration) {
        self.watermark_lag.set(lag);
    }

    /// Outputs not yet known to be delivered.
    pub fn set_outbox(&self, outputs: u64) {
        self.outbox.set(outputs as f64);
    }

    /// The running counts of the source partition: `late` of `ticks`.
    pub fn set_late_ratio(&self, late: u64, ticks: u64) {
        self.late_ratio.set(if ticks == 0 { 0.0 } else { late as f64 / ticks as f64 });
    }

    /// What holds time back.
    pub fn set_state(&self, state: PartitionState) {
        for (of, gauge) in &self.states {
            gauge.set(if *of == state { 1.0 } else { 0.0 });
        }
    }

    fn reset(&self) {
        let states = self.states.iter().map(|(_, gauge)| gauge);
        for gauge in [&self.lag, &self.watermark_lag, &self.outbox, &self.late_ratio].into_iter().chain(states) {
            gauge.set(0.0);
        }
    }
}

impl Drop for PartitionMetrics {
    fn drop(&mut self) {
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partitions_gauges_say_nothing_once_it_is_lost() {
        let recorder = catalogue::recorder();
        let handle = recorder.handle();
        let partition = SourcePartition { topic: "t".into(), partition: 3 };
        let metrics = metrics::with_local_recorder(&recorder, || PartitionMetrics::new(&partition));
        metrics.set_lag(17);
        metrics.set_state(PartitionState::Asking);
        metrics.applied(5, Duration::from_millis(3));
        let page = handle.render();
        for line in [
            "tickwatch_lag_records{partition=\"3\"} 17",
            "tickwatch_partition_state{partition=\"3\",state=\"asking\"} 1",
            "tickwatch_partition_state{partition=\"3\",state=\"current\"} 0",
            "tickwatch_ticks_total 5",
            "tickwatch_apply_duration_seconds_bucket{le=\"0.005\"} 1",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        drop(metrics);
        let page = handle.render();
        assert!(page.contains("tickwatch_lag_records{partition=\"3\"} 0"), "{page}");
        assert!(page.contains("state=\"asking\"} 0"), "{page}");
        assert!(page.contains("tickwatch_ticks_total 5"), "{page}");
    }
}
