//! Source partitions as operators read them: owner, positions, counts and what holds time back.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Role};
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
    /// Fields that should hold a number and do not, in words; they are absent above.
    pub spoilt: Vec<String>,
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
        sources.push(SourceState { due, outbox, ..parse(partition, &named(values)) });
    }
    Ok(sources)
}

/// A source partition as [`look`] finds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// Its fields and counts.
    pub state: SourceState,
    /// End of the earliest open window, ms.
    pub next_due: Option<i64>,
    /// Id of the oldest output not yet known to be delivered.
    pub oldest_output: Option<String>,
}

/// Reads some source partitions in one round trip, those without state left out, and Redis' clock in ms. A server that is
/// no primary any more is an error: what it says may be old. Needs no more rights than a worker has.
pub async fn look(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    topic: &str,
    partitions: &[i32],
) -> Result<(Vec<Look>, i64)> {
    /// An entry of a stream: its id, its fields.
    type Entry = (String, Vec<Vec<u8>>);
    type Found = (Vec<Option<String>>, u64, u64, Vec<(Vec<u8>, f64)>, Vec<Entry>);
    let mut pipe = Pipeline::with_capacity(2 + partitions.len() * 5);
    pipe.cmd("ROLE").cmd("TIME");
    for partition in partitions {
        let source = SourcePartition { topic: topic.to_owned(), partition: *partition };
        pipe.cmd("HMGET").arg(keys.source(&source)).arg(&FIELDS[..]);
        pipe.cmd("ZCARD").arg(keys.due(&source));
        pipe.cmd("XLEN").arg(keys.outbox(&source));
        pipe.cmd("ZRANGE").arg(keys.due(&source)).arg(0).arg(0).arg("WITHSCORES");
        pipe.cmd("XRANGE").arg(keys.outbox(&source)).arg("-").arg("+").arg("COUNT").arg(1);
    }
    let answers: Vec<redis::Value> =
        pipe.query_async(conn).await.with_context(|| format!("reading the partitions of {topic}"))?;
    let [role, time, answers @ ..] = answers.as_slice() else { bail!("Redis did not tell its role and the time") };
    if !matches!(redis::from_redis_value(role.clone())?, Role::Primary { .. }) {
        bail!("the server is a replica now");
    }
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time.clone())?;
    let mut looks = Vec::with_capacity(partitions.len());
    for (partition, answers) in partitions.iter().zip(answers.chunks(5)) {
        let found: Found = redis::from_redis_value(redis::Value::Array(answers.to_vec()))
            .with_context(|| format!("the keys of {topic}/{partition} are not those of a worker"))?;
        let (values, due, outbox, next_due, oldest) = found;
        if values.iter().all(Option::is_none) {
            continue;
        }
        looks.push(Look {
            state: SourceState { due, outbox, ..parse(*partition, &named(values)) },
            next_due: next_due.first().map(|(_, end)| *end as i64),
            oldest_output: oldest.into_iter().next().map(|(id, _)| id),
        });
    }
    Ok((looks, seconds * 1_000 + micros / 1_000))
}

fn named(values: Vec<Option<String>>) -> HashMap<&'static str, String> {
    FIELDS.into_iter().zip(values).filter_map(|(field, value)| Some((field, value?))).collect()
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
    let mut spoilt = Vec::new();
    let mut number = |field: &str| {
        let text = fields.get(field).filter(|text| !text.is_empty())?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            spoilt.push(format!("{field} {text} is no number"));
        }
        parsed
    };
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
        spoilt,
    }
}
