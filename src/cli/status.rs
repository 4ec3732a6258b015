//! `tickwatch status`: every source partition, how far it is, and what holds it back.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::Cell;
use serde::Serialize;

use super::text::{maybe_number, now, number, print, print_json, roughly, table, utc};
use crate::config::Config;
use crate::kafka::progress::{self, Progress};
use crate::store::connection::connect;
use crate::store::keys::Keys;
use crate::store::sources::{self, SourceState};

/// Show every source partition: owner, positions, lag, and what holds time back
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch status\n  \
    watch -n 1 tickwatch status\n  \
    tickwatch status --json | jq '.partitions[] | {partition, lag, owner: .state.owner}'")]
pub struct Args {
    /// JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// One source partition, from both sides.
#[derive(Debug, Serialize)]
struct PartitionStatus {
    partition: i32,
    /// `null` if no worker has claimed it yet.
    state: Option<SourceState>,
    #[serde(flatten)]
    kafka: Progress,
    lag: Option<i64>,
    /// How far the watermark is behind this machine's clock, ms.
    behind: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Status {
    namespace: String,
    topic: String,
    group: String,
    /// Why what Kafka knows is missing.
    kafka_error: Option<String>,
    partitions: Vec<PartitionStatus>,
}

/// Runs the subcommand. Without Redis there is nothing to tell; without Kafka the rest is told.
pub async fn run(config: Config, args: Args) -> Result<()> {
    let mut conn = connect(&config.redis).await?;
    let keys = Keys::new(config.namespace.clone());
    let states = sources::read(&mut conn, &keys, &config.kafka.topic).await?;
    let progress = progress::read(&config.kafka).await;
    let status = Status::new(&config, states, progress, now());
    if args.json { print_json(&status) } else { print(&status.text(now())) }
}

impl Status {
    fn new(config: &Config, states: Vec<SourceState>, kafka: Result<BTreeMap<i32, Progress>>, now: i64) -> Self {
        let (kafka, kafka_error) = match kafka {
            Ok(kafka) => (kafka, None),
            Err(e) => (BTreeMap::new(), Some(reason(&e))),
        };
        let mut both: BTreeMap<i32, (Option<SourceState>, Progress)> =
            kafka.into_iter().map(|(partition, kafka)| (partition, (None, kafka))).collect();
        for state in states {
            let (known, _) = both.entry(state.partition).or_default();
            *known = Some(state);
        }
        let partitions = both.into_iter().map(|(partition, (state, kafka))| {
            let watermark = state.as_ref().and_then(|state| state.watermark);
            let behind = watermark.map(|watermark| now - watermark);
            PartitionStatus { partition, state, kafka, lag: kafka.lag(), behind }
        });
        Status {
            namespace: config.namespace.clone(),
            topic: config.kafka.topic.clone(),
            group: config.kafka.group.clone(),
            kafka_error,
            partitions: partitions.collect(),
        }
    }

    fn text(&self, now: i64) -> String {
        let Status { namespace, topic, group, kafka_error, partitions } = self;
        let mut lines = vec![format!("topic {topic}, group {group}, namespace {namespace}")];
        if let Some(owner) =
            partitions.iter().filter_map(|p| p.state.as_ref()?.group.as_ref()).find(|g| *g != group)
        {
            lines.push(format!(
                "The namespace belongs to consumer group \"{owner}\": a worker of group \"{group}\" stops; give it a \
                 namespace of its own"
            ));
        }
        lines.extend(kafka_error.iter().map(|error| format!("Kafka: {error}")));
        if partitions.is_empty() {
            lines.push("No source partition was ever claimed. Start a worker: tickwatch run".to_owned());
        } else {
            lines.push(positions(partitions, now).to_string());
            lines.push(counts(partitions).to_string());
            let holds_back = |p: &PartitionStatus| format!("{topic}/{}: {}", p.partition, p.holds_back(now));
            lines.extend(partitions.iter().map(holds_back));
        }
        lines.join("\n") + "\n"
    }
}

/// The outermost and the innermost message: librdkafka's errors repeat themselves in between.
fn reason(e: &anyhow::Error) -> String {
    if e.chain().len() == 1 { e.to_string() } else { format!("{e}: {}", e.root_cause()) }
}

fn positions(partitions: &[PartitionStatus], now: i64) -> comfy_table::Table {
    let header =
        ["partition", "owner", "epoch", "seen", "applied", "committed", "end", "lag", "watermark (UTC)", "behind"];
    let mut table = table(&header);
    for PartitionStatus { partition, state, kafka, lag, behind } in partitions {
        let state = state.as_ref();
        let owner = state.and_then(|s| s.owner.as_deref()).unwrap_or("-");
        let seen = state.and_then(|s| s.seen).map(|at| format!("{} ago", roughly((now - at).max(0))));
        table.add_row([
            number(partition),
            Cell::new(owner),
            maybe_number(state.and_then(|s| s.epoch)),
            Cell::new(seen.as_deref().unwrap_or("-")),
            maybe_number(state.and_then(|s| s.next_offset)),
            maybe_number(kafka.committed),
            maybe_number(kafka.end_offset),
            maybe_number(*lag),
            Cell::new(state.and_then(|s| s.watermark).map_or_else(|| "-".to_owned(), utc)),
            maybe_number(behind.map(|ms| roughly(ms.max(0)))),
        ]);
    }
    table
}

fn counts(partitions: &[PartitionStatus]) -> comfy_table::Table {
    let mut table = table(&[
        "partition",
        "ticks",
        "late",
        "out of order",
        "notifications",
        "dead letters",
        "open windows",
        "outbox",
    ]);
    for PartitionStatus { partition, state, .. } in partitions {
        let Some(state) = state else {
            continue;
        };
        table.add_row([
            number(partition),
            maybe_number(state.ticks),
            maybe_number(state.late),
            maybe_number(state.out_of_order),
            maybe_number(state.notifications),
            maybe_number(state.dead_letters),
            number(state.due),
            number(state.outbox),
        ]);
    }
    table
}

impl PartitionStatus {
    /// `lagging for 12s: 4000 records behind`
    fn holds_back(&self, now: i64) -> String {
        let Some(state) = &self.state else {
            if let Some(committed) = self.kafka.committed {
                return format!(
                    "offset {committed} is committed, but Redis holds no state: it is lost, or another Redis or namespace \
                     has it; a worker does what [recovery] on_state_loss says"
                );
            }
            return "not claimed yet: start a worker with tickwatch run".to_owned();
        };
        let Some(word) = &state.state else {
            return "claimed, no sign of life yet".to_owned();
        };
        let since = state.since.map(|since| format!(" for {}", roughly((now - since).max(0)))).unwrap_or_default();
        let reason = state.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let said = format!("{word}{since}{reason}");
        [&[said], state.spoilt.as_slice()].concat().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(partition: i32) -> SourceState {
        SourceState {
            partition,
            owner: Some("worker-1".into()),
            watermark: Some(1_000),
            state: Some("lagging".into()),
            reason: Some("4000 records behind".into()),
            since: Some(1_000),
            ..SourceState::default()
        }
    }

    #[test]
    fn the_namespace_of_another_group_is_named() {
        let told = |group: &str| {
            let state = SourceState { group: Some(group.to_owned()), ..state(0) };
            Status::new(&Config::default(), vec![state], Ok(BTreeMap::new()), 13_000).text(13_000)
        };
        assert!(
            told("others").contains("belongs to consumer group \"others\": a worker of group \"tickwatch\" stops")
        );
        assert!(!told("tickwatch").contains("belongs"));
    }

    #[test]
    fn without_kafka_the_rest_is_told_with_the_reason() {
        let status =
            Status::new(&Config::default(), vec![state(3)], Err(anyhow::anyhow!("no answer from x")), 13_000);
        let text = status.text(13_000);
        assert!(text.contains("Kafka: no answer from x"), "{text}");
        assert!(text.contains("worker-1"), "{text}");
        assert!(text.contains("market-updates/3: lagging for 12s: 4000 records behind"), "{text}");
    }

    #[test]
    fn a_partition_nobody_claimed_is_listed_with_what_to_do() {
        let kafka = Progress { committed: None, start_offset: Some(10), end_offset: Some(15) };
        let status = Status::new(&Config::default(), vec![], Ok(BTreeMap::from([(0, kafka)])), 0);
        assert_eq!(status.partitions[0].lag, Some(5));
        assert!(status.text(0).contains("market-updates/0: not claimed yet: start a worker"));
    }

    #[test]
    fn a_partition_whose_state_is_gone_is_not_called_new() {
        let kafka = Progress { committed: Some(12), start_offset: Some(0), end_offset: Some(15) };
        let status = Status::new(&Config::default(), vec![], Ok(BTreeMap::from([(0, kafka)])), 0);
        assert!(status.text(0).contains("market-updates/0: offset 12 is committed, but Redis holds no state"));
    }

    #[test]
    fn nothing_at_all_says_what_to_do_next() {
        let status = Status::new(&Config::default(), vec![], Err(anyhow::anyhow!("away")), 0);
        assert!(status.text(0).contains("Start a worker: tickwatch run"));
    }
}
