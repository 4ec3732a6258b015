//! Every metric: its name, unit, labels and meaning.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::events::{DEAD_LETTER_KINDS, Stop, Takeover};

pub(super) const TICKS: &str = "tickwatch_ticks_total";
pub(super) const BATCHES: &str = "tickwatch_batches_total";
pub(super) const NOTIFICATIONS: &str = "tickwatch_notifications_total";
pub(super) const CANDLES: &str = "tickwatch_candles_total";
pub(super) const LATE_TICKS: &str = "tickwatch_late_ticks_total";
pub(super) const OUT_OF_ORDER: &str = "tickwatch_out_of_order_ticks_total";
pub(super) const DEAD_LETTERS: &str = "tickwatch_dead_letters_total";
pub(super) const ROUNDED_PRICES: &str = "tickwatch_rounded_prices_total";
pub(super) const FUTURE_TICKS: &str = "tickwatch_future_ticks_total";
pub(super) const REFUSED_MATCHES: &str = "tickwatch_refused_matches_total";
pub(super) const BAD_RULES: &str = "tickwatch_bad_rules_total";
pub(super) const RECOVERIES: &str = "tickwatch_recoveries_total";
pub(super) const LOST_CANDLES: &str = "tickwatch_lost_candles_total";
pub(super) const POISONED_KEYS: &str = "tickwatch_poisoned_keys_total";
pub(super) const FENCED: &str = "tickwatch_fenced_total";
pub(super) const MOVED: &str = "tickwatch_moved_total";
pub(super) const TAKEOVERS: &str = "tickwatch_takeovers_total";
pub(super) const STOPPED: &str = "tickwatch_partitions_stopped_total";
pub(super) const REDIS_ERRORS: &str = "tickwatch_redis_errors_total";
pub(super) const KAFKA_ERRORS: &str = "tickwatch_kafka_errors_total";
pub(super) const PRODUCE_ERRORS: &str = "tickwatch_produce_errors_total";
pub(super) const COMMIT_ERRORS: &str = "tickwatch_commit_errors_total";

pub(super) const APPLY_SECONDS: &str = "tickwatch_apply_duration_seconds";
pub(super) const BATCH_TICKS: &str = "tickwatch_batch_ticks";
pub(super) const DELIVERY_SECONDS: &str = "tickwatch_delivery_duration_seconds";

pub(super) const READY: &str = "tickwatch_ready";
pub(super) const PARTITIONS_OWNED: &str = "tickwatch_partitions_owned";
pub(super) const LAG: &str = "tickwatch_lag_records";
pub(super) const WATERMARK_LAG: &str = "tickwatch_watermark_lag_seconds";
pub(super) const OUTBOX: &str = "tickwatch_outbox_outputs";
pub(super) const LATE_RATIO: &str = "tickwatch_late_ratio";
pub(super) const STATE: &str = "tickwatch_partition_state";

/// Kinds of Redis errors, label `kind`.
pub(super) const REDIS_ERROR_KINDS: [&str; 4] = ["away", "refused", "script", "reply"];
/// Kinds of Kafka errors, label `kind`.
pub(super) const KAFKA_ERROR_KINDS: [&str; 4] = ["connection", "timeout", "fatal", "other"];

/// A script is meant to take about 10 ms; past 1 s it holds everyone up.
const APPLY_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
const BATCH_BUCKETS: [f64; 8] = [1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 20_000.0];
const DELIVERY_BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

const COUNTERS: [(&str, &str); 22] = [
    (TICKS, "Ticks applied to the state."),
    (BATCHES, "Batches applied to the state."),
    (NOTIFICATIONS, "Notifications delivered, by trigger."),
    (CANDLES, "Candles delivered, by status: final or revised."),
    (LATE_TICKS, "Ticks late for at least one window, by what became of them."),
    (
        OUT_OF_ORDER,
        "Ticks older than their symbol's last: counted in candles, they move no price and fire no rule.",
    ),
    (DEAD_LETTERS, "Records sent to the dead-letter topic, by what was wrong with them."),
    (ROUNDED_PRICES, "Prices of more than 15 significant digits, rounded."),
    (FUTURE_TICKS, "Ticks too far ahead of their reference time."),
    (REFUSED_MATCHES, "Level rules that matched a tick beyond max_matches and did not fire."),
    (BAD_RULES, "Rules that cannot be read, each time one is met."),
    (POISONED_KEYS, "Redis keys of the wrong type or content that stopped their symbol, each time one is met."),
    (LOST_CANDLES, "Due windows whose key held no candle."),
    (RECOVERIES, "Times something was missing at takeover and the configuration said to go on."),
    (FENCED, "Calls refused because another worker owns the partition."),
    (MOVED, "Calls refused because the state is not where this worker left it."),
    (TAKEOVERS, "Partitions taken over, by why."),
    (STOPPED, "Partitions stopped until someone acts, by why."),
    (REDIS_ERRORS, "Redis calls that failed, by kind."),
    (KAFKA_ERRORS, "Errors told by the Kafka client, by kind."),
    (PRODUCE_ERRORS, "Outputs that Kafka did not take."),
    (COMMIT_ERRORS, "Commits of the delivered position that failed or whose outcome is unknown."),
];

/// A recorder with this catalogue's buckets; it opens no port of its own.
pub(super) fn recorder() -> PrometheusRecorder {
    [(APPLY_SECONDS, &APPLY_BUCKETS[..]), (BATCH_TICKS, &BATCH_BUCKETS), (DELIVERY_SECONDS, &DELIVERY_BUCKETS)]
        .into_iter()
        .try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
        })
        .unwrap_or_else(|_| unreachable!("every list of buckets has a value"))
        .build_recorder()
}

/// Tells the recorder what each metric means.
pub(super) fn describe() {
    for (name, meaning) in COUNTERS {
        describe_counter!(name, meaning);
    }
    describe_histogram!(APPLY_SECONDS, Unit::Seconds, "Time from sending a batch to Redis to its reply.");
    describe_histogram!(BATCH_TICKS, Unit::Count, "Ticks in a batch.");
    describe_histogram!(
        DELIVERY_SECONDS,
        Unit::Seconds,
        "Time from a batch's reply from Redis to the acknowledgement of its last output."
    );
    describe_gauge!(READY, "1 if this worker does its work, 0 if /readyz has a reason against it.");
    describe_gauge!(PARTITIONS_OWNED, "Partitions this worker owns.");
    describe_gauge!(LAG, "Records between the state position and the end of the partition.");
    describe_gauge!(WATERMARK_LAG, Unit::Seconds, "How far the watermark is behind the clock.");
    describe_gauge!(OUTBOX, "Outputs applied but not yet known to be delivered.");
    describe_gauge!(LATE_RATIO, "Part of a partition's ticks that were late, since this worker owns it.");
    describe_gauge!(
        STATE,
        "1 for the state a partition is in here, 0 for the others; all 0 where it is not owned."
    );
}

/// Registers every metric that has no partition, so that it is there before anything happened.
pub(super) fn start_at_zero() {
    for name in [
        TICKS,
        BATCHES,
        OUT_OF_ORDER,
        ROUNDED_PRICES,
        FUTURE_TICKS,
        REFUSED_MATCHES,
        BAD_RULES,
        POISONED_KEYS,
        LOST_CANDLES,
        RECOVERIES,
        FENCED,
        MOVED,
        PRODUCE_ERRORS,
        COMMIT_ERRORS,
    ] {
        counter!(name).absolute(0);
    }
    let labelled: [(&str, &'static str, &[&'static str]); 8] = [
        (NOTIFICATIONS, "trigger", &["edge", "level"]),
        (CANDLES, "status", &["final", "revised"]),
        (LATE_TICKS, "policy", &["drop", "divert", "revise"]),
        (DEAD_LETTERS, "kind", &DEAD_LETTER_KINDS),
        (TAKEOVERS, "reason", &Takeover::ALL.map(Takeover::as_str)),
        (STOPPED, "reason", &Stop::ALL.map(Stop::as_str)),
        (REDIS_ERRORS, "kind", &REDIS_ERROR_KINDS),
        (KAFKA_ERRORS, "kind", &KAFKA_ERROR_KINDS),
    ];
    for (name, label, values) in labelled {
        for value in values {
            counter!(name.to_owned(), label => *value).absolute(0);
        }
    }
    for name in [APPLY_SECONDS, BATCH_TICKS, DELIVERY_SECONDS] {
        let _registered = histogram!(name);
    }
    gauge!(READY).set(0.0);
    gauge!(PARTITIONS_OWNED).set(0.0);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::SourcePartition;
    use crate::telemetry::PartitionMetrics;

    /// What operators put into their Prometheus and Grafana.
    const OPERATORS_FILES: [(&str, &str); 3] = [
        ("grafana/tickwatch.json", include_str!("../../ops/grafana/tickwatch.json")),
        ("prometheus/alerts.yml", include_str!("../../ops/prometheus/alerts.yml")),
        ("prometheus/alerts_test.yml", include_str!("../../ops/prometheus/alerts_test.yml")),
    ];
    /// Labels that Prometheus adds, and its own of histograms.
    const LABELS_OF_OTHERS: [&str; 3] = ["job", "instance", "le"];

    /// `/metrics` of a worker that owns a partition.
    fn page() -> String {
        let recorder = recorder();
        let handle = recorder.handle();
        let partition = SourcePartition { topic: "t".into(), partition: 0 };
        metrics::with_local_recorder(&recorder, || {
            describe();
            start_at_zero();
            let of_partition = PartitionMetrics::new(&partition);
            of_partition.applied(1, std::time::Duration::ZERO);
            of_partition.batch_delivered(std::time::Duration::ZERO);
        });
        handle.render()
    }

    /// The names of all series of a page.
    fn series(page: &str) -> BTreeSet<&str> {
        let samples = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        samples.filter_map(|line| line.split(['{', ' ']).next()).collect()
    }

    /// Every `tickwatch_…` of a text, with what is behind it.
    fn mentioned(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.match_indices("tickwatch_").map(|(at, _)| {
            let rest = &text[at..];
            rest.split_at(rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len()))
        })
    }

    /// The labels and values that a selector, which may be in a JSON text, asks for by equality or as alternatives.
    fn wanted(selector: &str) -> Vec<(String, String)> {
        let Some(inside) = selector.strip_prefix('{').and_then(|rest| rest.split('}').next()) else {
            return Vec::new();
        };
        let plain = inside.replace('\\', "");
        let matchers = plain.split(", ").filter_map(|matcher| {
            let (label, value) = matcher.split_once('=')?;
            Some((label.trim_end_matches('!').to_owned(), value.trim_matches(['~', '"']).to_owned()))
        });
        let ours = matchers.filter(|(label, value)| !LABELS_OF_OTHERS.contains(&&**label) && !value.contains('$'));
        let each = ours.flat_map(|(label, value)| {
            value.split('|').map(|value| (label.clone(), value.to_owned())).collect::<Vec<_>>()
        });
        each.filter(|(label, _)| label != "partition").collect()
    }

    #[test]
    fn what_operators_files_name_is_exported_by_that_name() {
        let page = page();
        let series = series(&page);
        for (file, text) in OPERATORS_FILES {
            assert!(mentioned(text).count() > 0, "{file} names no metric");
            for (name, behind) in mentioned(text) {
                assert!(series.contains(name), "{file} names {name}, which no worker exports");
                for (label, value) in wanted(behind) {
                    let wanted = format!("{label}=\"{value}\"");
                    let found = page.lines().any(|line| line.starts_with(name) && line.contains(&wanted));
                    assert!(found, "{file} asks for {name} with {wanted}, which no worker exports");
                }
            }
        }
    }

    #[test]
    fn every_metric_is_on_the_dashboard() {
        let (_, dashboard) = OPERATORS_FILES[0];
        let shown: BTreeSet<&str> = mentioned(dashboard).map(|(name, _)| name).collect();
        let page = page();
        for name in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
            let suffixes = ["", "_bucket", "_sum", "_count"];
            let found = suffixes.iter().any(|suffix| shown.contains(&*format!("{name}{suffix}")));
            assert!(found, "{name} is not on the dashboard");
        }
    }

    #[test]
    fn every_counter_is_described_and_there_at_zero() {
        let recorder = recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            start_at_zero();
        });
        let page = handle.render();
        for (name, meaning) in COUNTERS {
            assert!(page.contains(&format!("# HELP {name} {meaning}")), "{name} is not described:\n{page}");
            let value = page.lines().find(|line| line.starts_with(name));
            assert!(value.is_some_and(|line| line.ends_with(" 0")), "{name} is not at zero");
        }
        for name in [APPLY_SECONDS, BATCH_TICKS, DELIVERY_SECONDS] {
            assert!(page.contains(&format!("{name}_count 0")), "{name} is not at zero:\n{page}");
        }
    }
}
