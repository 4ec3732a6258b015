//! The compose file as a user sees it: ticks in through the published port, outputs out, and a killed worker's
//! partitions in other hands. `make test-compose` starts it and runs this; other runs do not list it.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use redis::Commands as _;

use crate::harness::{self, Case, Isolation, Needs, Record, Stage, cases, wait_until};

/// The compose command with its files and project, set by `make test-compose`.
const COMPOSE_VARIABLE: &str = "TW_TEST_COMPOSE";

const TOPIC: &str = "market-updates";
const PARTITIONS: usize = 6;

/// Containers start, groups balance, and a killed member is missed after its session timeout.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn cases() -> Vec<Case> {
    if env::var_os(COMPOSE_VARIABLE).is_none() {
        return Vec::new();
    }
    cases!(Needs::Nothing;
        ticks_through_the_published_port_become_notifications_and_candles,
        the_partitions_of_a_killed_worker_are_taken_over,
    )
}

fn ticks_through_the_published_port_become_notifications_and_candles(stage: &Stage) -> anyhow::Result<()> {
    put_edge_rule("COMPOSE", 100, "first")?;
    produce_crossing(stage, "COMPOSE")?;

    wait_for_record("notifications", "the notification of rule first", |record| {
        record.key.as_deref() == Some("COMPOSE") && record.value.contains("first")
    })?;
    wait_for_record("candles", "a candle of COMPOSE", |record| record.key.as_deref() == Some("COMPOSE"))
}

fn the_partitions_of_a_killed_worker_are_taken_over(stage: &Stage) -> anyhow::Result<()> {
    let mut owners = BTreeMap::new();
    wait_until(PATIENCE, "an owner for each partition", || {
        owners = owners_of_partitions().unwrap_or_default();
        owners.len() == PARTITIONS
    })?;
    let (victim, lost) = worker_with_partitions(&owners)?;
    docker(&["kill", &victim])?;

    wait_until(PATIENCE, "other owners with higher epochs for the killed worker's partitions", || {
        owners_of_partitions().is_ok_and(|now| {
            lost.iter().all(|partition| {
                let (before, after) = (&owners[partition], now.get(partition));
                after.is_some_and(|after| after.owner != before.owner && after.epoch > before.epoch)
            })
        })
    })?;

    // One symbol for each of many partitions: whoever owns them now, each still fires.
    let symbols: Vec<String> = (0..4 * PARTITIONS).map(|n| format!("AFTER{n}")).collect();
    for symbol in &symbols {
        put_edge_rule(symbol, 100, "second")?;
        produce_crossing(stage, symbol)?;
    }
    for symbol in &symbols {
        wait_for_record("notifications", &format!("the notification of {symbol}"), |record| {
            record.key.as_ref() == Some(symbol)
        })?;
    }
    Ok(())
}

/// Who holds a partition, as Redis has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    owner: String,
    epoch: u64,
}

fn owners_of_partitions() -> anyhow::Result<BTreeMap<usize, Owner>> {
    let mut redis = redis()?;
    let mut owners = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let key = format!("tw:source:{TOPIC}/{partition}");
        let (owner, epoch): (Option<String>, Option<u64>) = redis.hmget(&key, &["owner", "epoch"])?;
        if let (Some(owner), Some(epoch)) = (owner, epoch) {
            owners.insert(partition, Owner { owner, epoch });
        }
    }
    Ok(owners)
}

/// A worker's container and the partitions it owns. An owner's name holds its host's name, which in a container
/// is the start of the container's id.
fn worker_with_partitions(owners: &BTreeMap<usize, Owner>) -> anyhow::Result<(String, Vec<usize>)> {
    let containers = compose(&["ps", "-q", "worker"])?;
    ensure!(containers.lines().count() == 3, "three workers run: {containers}");
    let owned_by = |container: &str| -> Vec<usize> {
        let host = &container[..12];
        owners.iter().filter(|(_, owner)| owner.owner.contains(host)).map(|(partition, _)| *partition).collect()
    };
    containers
        .lines()
        .map(|container| (container.to_owned(), owned_by(container)))
        .find(|(_, partitions)| !partitions.is_empty())
        .with_context(|| format!("no worker of\n{containers} is among the owners {owners:?}"))
}

fn put_edge_rule(symbol: &str, threshold: i64, rule: &str) -> anyhow::Result<()> {
    Ok(redis()?.zadd(format!("tw:rules:{symbol}:edge"), format!(">= {rule}"), threshold)?)
}

/// Two ticks of now, one below and one above 100.
fn produce_crossing(stage: &Stage, symbol: &str) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as u64;
    let tick = |price: u32, ts: u64| {
        let value = serde_json::json!({ "symbol": symbol, "price": price, "volume": 1, "ts": ts });
        (symbol.to_owned(), value.to_string())
    };
    harness::produce(stage, &brokers(), TOPIC, [tick(99, now - 1), tick(101, now)])?;
    Ok(())
}

fn wait_for_record(topic: &str, what: &str, wanted: impl Fn(&Record) -> bool) -> anyhow::Result<()> {
    wait_until(PATIENCE, what, || {
        harness::consume_all(&brokers(), topic, Isolation::ReadCommitted)
            .is_ok_and(|records| records.iter().any(&wanted))
    })
}

fn redis() -> anyhow::Result<redis::Connection> {
    harness::connect(&format!("redis://127.0.0.1:{}", port("TW_REDIS_PORT", "6379")))
}

fn brokers() -> String {
    format!("localhost:{}", port("TW_KAFKA_PORT", "9094"))
}

fn port(variable: &str, default: &str) -> String {
    env::var(variable).unwrap_or_else(|_| default.to_owned())
}

fn compose(arguments: &[&str]) -> anyhow::Result<String> {
    let command = env::var(COMPOSE_VARIABLE)?;
    let words: Vec<&str> = command.split_whitespace().chain(arguments.iter().copied()).collect();
    output(&words)
}

fn docker(arguments: &[&str]) -> anyhow::Result<String> {
    output(&[&["docker"], arguments].concat())
}

fn output(words: &[&str]) -> anyhow::Result<String> {
    let command = words.join(" ");
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .with_context(|| format!("run {command}"))?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
