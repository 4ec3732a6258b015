//! Source partitions as operators read them: owner, positions, counts and what holds time back.

use std::collections::HashMap;

use anyhow::{Context, Result};
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use super::keys::Keys;
use super::scan;
use crate::domain::SourcePartition;

/// What Redis holds of one source partition. Times are ms since the epoch; what is not there is `None`.
///
/// The token is not among it: who has it can write as the owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceState {
    /// Number of the partition.
    pub partition: i32,
    /// Counts the owners so far.
    pub epoch: Option<i64>,
    /// The worker that claimed it last.
    pub owner: Option<String>,
    /// Its consumer group.
    pub group: Option<String>,
    /// Next offset to apply.
    pub next_offset: Option<i64>,
    /// Event time up to which it is complete.
    pub watermark: Option<i64>,
    /// Greatest event time seen.
    pub max_ts: Option<i64>,
    /// When that was applied, by Redis' clock.
    pub max_ts_at: Option<i64>,
    /// The owner's last sign of life, by Redis' clock.
    pub seen: Option<i64>,
    /// `current`, `quiet`, `lagging`, `asking` or `stopped`.
    pub state: Option<String>,
    /// What holds time back, in words.
    pub reason: Option<String>,
    /// In this state since.
    pub since: Option<i64>,
    /// Ticks applied.
    pub ticks: Option<i64>,
    /// Ticks late for a window.
    pub late: Option<i64>,
    /// Ticks older than their symbol's last.
    pub out_of_order: Option<i64>,
    /// Notifications made.
    pub notifications: Option<i64>,
    /// Records sent to the dead-letter topic.
    pub dead_letters: Option<i64>,
    /// Fingerprint of the settings that decide state.
    pub fingerprint: Option<String>,
    /// How often the topic was started over.
    pub generation: Option<i64>,
    /// Mark of the last applied record.
    pub last_record: Option<String>,
    /// Open windows.
    pub due: u64,
    /// Outputs not yet known to be delivered.
    pub outbox: u64,
}

/// The fields read, never the token.
const FIELDS: [&str; 19] = [
    "epoch",
    "owner",
    "group",
    "next_offset",
    "watermark",
    "max_ts",
    "max_ts_at",
    "seen",
    "state",
    "reason",
    "since",
    "ticks",
    "late",
    "out_of_order",
    "notifications",
    "dead_letters",
    "fingerprint",
    "generation",
    "last_record",
];

/// Reads every source partition of `topic` that was ever claimed, by number.
pub async fn read(conn: &mut MultiplexedConnection, keys: &Keys, topic: &str) -> Result<Vec<SourceState>> {
    let mut sources = Vec::new();
    for partition in partitions(conn, keys, topic).await? {
        let source = SourcePartition { topic: topic.to_owned(), partition };
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("HMGET").arg(keys.source(&source)).arg(&FIELDS[..]);
        pipe.cmd("ZCARD").arg(keys.due(&source));
        pipe.cmd("XLEN").arg(keys.outbox(&source));
        let (values, due, outbox): (Vec<Option<String>>, u64, u64) =
            pipe.query_async(conn).await.with_context(|| format!("reading the state of {source}"))?;
        let fields = FIELDS.into_iter().zip(values).filter_map(|(field, value)| Some((field, value?)));
        sources.push(SourceState { due, outbox, ..parse(partition, &fields.collect()) });
    }
    Ok(sources)
}

/// Whether a source partition has no open window and no output that is not known to be delivered.
pub async fn is_settled(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    partition: &SourcePartition,
) -> Result<bool> {
    let mut pipe = Pipeline::with_capacity(2);
    pipe.cmd("ZCARD").arg(keys.due(partition)).cmd("XLEN").arg(keys.outbox(partition));
    let (due, outbox): (u64, u64) =
        pipe.query_async(conn).await.with_context(|| format!("reading the state of {partition}"))?;
    Ok(due == 0 && outbox == 0)
}

async fn partitions(conn: &mut MultiplexedConnection, keys: &Keys, topic: &str) -> Result<Vec<i32>> {
    let first = keys.source(&SourcePartition { topic: topic.to_owned(), partition: 0 });
    let prefix = first.trim_end_matches('0');
    let pattern = format!("{}*", scan::glob_escape(prefix));
    let names = scan::keys(conn, &pattern).await.context("looking for source partitions")?;
    let mut partitions: Vec<i32> =
        names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    partitions.sort_unstable();
    Ok(partitions)
}

/// Empty text means not there yet, as a watermark before the first tick.
fn parse(partition: i32, fields: &HashMap<&str, String>) -> SourceState {
    let text = |field: &str| fields.get(field).filter(|text| !text.is_empty()).cloned();
    let number = |field: &str| fields.get(field).and_then(|text| text.parse().ok());
    SourceState {
        partition,
        epoch: number("epoch"),
        owner: text("owner"),
        group: text("group"),
        next_offset: number("next_offset"),
        watermark: number("watermark"),
        max_ts: number("max_ts"),
        max_ts_at: number("max_ts_at"),
        seen: number("seen"),
        state: text("state"),
        reason: text("reason"),
        since: number("since"),
        ticks: number("ticks"),
        late: number("late"),
        out_of_order: number("out_of_order"),
        notifications: number("notifications"),
        dead_letters: number("dead_letters"),
        fingerprint: text("fingerprint"),
        generation: number("generation"),
        last_record: text("last_record"),
        due: 0,
        outbox: 0,
    }
}
