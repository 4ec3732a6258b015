//! The servers of a run: one real broker for everything, a new real Redis for each measurement.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::MetadataTopic;
use tempfile::TempDir;
use tickwatch::sandbox::{Broker, Redis};
use tokio::runtime::Runtime;

use crate::common::PATIENCE;
use crate::common::kafka::create_topics;
use crate::market::{Rule, Trigger, decimal, symbol_name};

/// Partitions of each output topic.
const OUTPUT_PARTITIONS: i32 = 6;
/// Symbols whose rules go to Redis in one round trip.
const PORTION: usize = 1_000;
/// Rules in one command.
const RULES_AT_ONCE: usize = 10_000;

/// Where everything is measured.
pub(crate) struct Lab {
    broker: Mutex<Broker>,
    brokers: String,
    broker_pid: u32,
    runtime: Runtime,
    directory: TempDir,
    names: AtomicU64,
}

/// Names that belong to one measurement: everything that begins with `group`.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) group: String,
    pub(crate) notifications: String,
    pub(crate) candles: String,
    pub(crate) dead_letters: String,
}

impl Lab {
    pub(crate) fn open() -> anyhow::Result<Lab> {
        let broker = Broker::start().context("the broker of the measurements")?;
        let (brokers, broker_pid) = (broker.brokers(), broker.pid());
        Ok(Lab {
            broker: Mutex::new(broker),
            brokers,
            broker_pid,
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
            directory: tempfile::Builder::new().prefix("tickwatch-bench-").tempdir()?,
            names: AtomicU64::new(1),
        })
    }

    /// `bootstrap.servers`
    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }

    pub(crate) fn broker_pid(&self) -> u32 {
        self.broker_pid
    }

    /// For logs, rule files and the state of peers.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// `<what>-<n>`, used by nothing else; no name begins with another.
    pub(crate) fn unique(&self, what: &str) -> String {
        format!("{what}-{:06}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Output topics for one measurement.
    pub(crate) fn output_topics(&self, what: &str) -> anyhow::Result<Names> {
        let group = self.unique(what);
        let names = Names {
            notifications: format!("{group}-notifications"),
            candles: format!("{group}-candles"),
            dead_letters: format!("{group}-dlq"),
            group,
        };
        let new = |name, partitions| NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topics = [
            new(&names.notifications, OUTPUT_PARTITIONS),
            new(&names.candles, OUTPUT_PARTITIONS),
            new(&names.dead_letters, 1),
        ];
        self.block_on(create_topics(&self.brokers, &topics))?;
        Ok(names)
    }

    /// An empty topic for ticks.
    pub(crate) fn source_topic(&self, partitions: i32) -> anyhow::Result<String> {
        let topic = self.unique("ticks");
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
        self.block_on(create_topics(&self.brokers, &[new]))?;
        Ok(topic)
    }

    /// Deletes every topic whose name begins so: what a measurement leaves would fill the disk, and the broker would
    /// go on compacting it.
    pub(crate) fn delete_topics(&self, prefix: &str) -> anyhow::Result<()> {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create()?;
        let metadata = admin.inner().fetch_metadata(None, PATIENCE)?;
        let names = metadata.topics().iter().map(MetadataTopic::name);
        let names: Vec<&str> = names.filter(|name| name.starts_with(prefix)).collect();
        if !names.is_empty() {
            let options = AdminOptions::new().request_timeout(Some(PATIENCE));
            self.block_on(admin.delete_topics(&names, &options)).context("delete topics")?;
        }
        Ok(())
    }

    /// Ends the broker; nothing in it is needed any more.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        let mut broker = self.broker.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(broker.kill()?)
    }
}

/// A Redis as the README asks for: an append-only file, which the disk gets once a second.
pub(crate) fn start_redis() -> anyhow::Result<Redis> {
    Redis::start(&[("appendfsync", "everysec")]).context("the Redis of a measurement")
}

/// Puts the same rules on every symbol, as `ZADD` does.
pub(crate) fn put_rules(redis: &mut redis::Connection, symbols: u32, rules: &[Rule]) -> anyhow::Result<()> {
    let mut sets: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in rules {
        sets.entry(set_of(rule)).or_default().push(rule);
    }
    let symbols: Vec<u32> = (0..symbols).collect();
    for portion in symbols.chunks(PORTION) {
        let mut pipe = redis::pipe();
        for symbol in portion {
            for (set, rules) in &sets {
                let key = format!("tw:rules:{}:{set}", symbol_name(*symbol));
                for some in rules.chunks(RULES_AT_ONCE) {
                    let zadd = pipe.cmd("ZADD").arg(&key);
                    for rule in some {
                        zadd.arg(decimal(rule.threshold)).arg(format!("{} {}", rule.op, rule.id));
                    }
                    zadd.ignore();
                }
            }
        }
        let () = pipe.query(redis)?;
    }
    Ok(())
}

fn set_of(rule: &Rule) -> &'static str {
    match (rule.trigger, rule.op) {
        (Trigger::Edge, _) => "edge",
        (Trigger::Level, "<" | "<=") => "level:below",
        (Trigger::Level, _) => "level:above",
    }
}

/// How long something may take that handles so many ticks, on a slow and busy machine.
pub(crate) fn patience(ticks: u64) -> Duration {
    const SLOWEST: u64 = 2_000; // ticks a second
    Duration::from_secs(60 + ticks / SLOWEST)
}
