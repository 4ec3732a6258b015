//! One source topic with its output topics and rules, a worker inside this process, and what came out of it in a
//! form that a test states in one line.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::admin::{NewTopic, TopicReplication};
use redis::Commands as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tickwatch::config::{Config, Scalar};
use tickwatch::domain::{Interval, SourcePartition};
use tickwatch::http::Health;
use tickwatch::store::keys::Keys;
use tickwatch::worker::supervisor::{self, Summary};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::kafka::create_topics;
pub(crate) use crate::common::now;
use crate::harness::{Isolation, Message, Record, Stage, wait_until};

/// How long a condition may take to come true before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The start of a minute in November 2023, ms. Starts of candles are told relative to it.
pub(crate) const MINUTE: i64 = 1_700_000_040_000;

/// A source topic and all that belongs to it.
pub(crate) struct Scene<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) config: Config,
}

impl<'a> Scene<'a> {
    /// One partition, candles of a minute.
    pub(crate) fn new(stage: &'a Stage) -> anyhow::Result<Scene<'a>> {
        Scene::with(stage, 1, |_| {})
    }

    /// So many partitions, and more settings.
    pub(crate) fn with(
        stage: &'a Stage,
        partitions: i32,
        set: impl FnOnce(&mut Config),
    ) -> anyhow::Result<Scene<'a>> {
        Scene::with_topic(stage, partitions, &[], set)
    }

    /// [`Scene::with`], and settings of the source topic.
    pub(crate) fn with_topic(
        stage: &'a Stage,
        partitions: i32,
        topic_settings: &[(&str, &str)],
        set: impl FnOnce(&mut Config),
    ) -> anyhow::Result<Scene<'a>> {
        let mut config = stage.config();
        config.namespace = format!("{}:", stage.unique("scene"));
        config.candles.intervals = intervals("1m");
        config.worker.heartbeat = Duration::from_millis(200);
        config.kafka.consumer.insert("session.timeout.ms".into(), Scalar("6000".into()));
        set(&mut config);
        let scene = Scene { stage, config };
        scene.create_topics(partitions, topic_settings)?;
        Ok(scene)
    }

    fn create_topics(&self, partitions: i32, settings: &[(&str, &str)]) -> anyhow::Result<()> {
        let config = &self.config;
        let replication = || TopicReplication::Fixed(1);
        let mut source = NewTopic::new(&config.kafka.topic, partitions, replication());
        for (name, value) in settings {
            source = source.set(name, value);
        }
        let (dead_letters, late) = (config.dead_letter_topic(), config.late_topic());
        let names = [&config.output.notifications, &config.output.candles, &dead_letters, &late];
        let topics: Vec<NewTopic> =
            names.into_iter().map(|name| NewTopic::new(name, 1, replication())).chain([source]).collect();
        self.stage.block_on(create_topics(self.stage.brokers(), &topics))
    }

    /// Sends records to the source topic, in order.
    pub(crate) fn send<M: Into<Message>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> anyhow::Result<Vec<(i32, i64)>> {
        self.stage.produce(&self.config.kafka.topic, messages)
    }

    /// Sends one tick a second of a symbol, from [`MINUTE`] on.
    pub(crate) fn send_prices(&self, symbol: &str, prices: &[&str]) -> anyhow::Result<()> {
        let ticks = (MINUTE..).step_by(1000).zip(prices).map(|(ts, price)| tick(symbol, price, ts));
        self.send(ticks)?;
        Ok(())
    }

    /// Adds a rule as a user would: `rule("BBCA", "edge", "9500", ">= alice")`.
    pub(crate) fn rule(&self, symbol: &str, set: &str, threshold: &str, member: &str) -> anyhow::Result<()> {
        let key = format!("{}rules:{symbol}:{set}", self.config.namespace);
        let () = redis::cmd("ZADD").arg(key).arg(threshold).arg(member).query(&mut self.stage.redis()?)?;
        Ok(())
    }

    /// Options of a rule, as JSON.
    pub(crate) fn rule_options(&self, symbol: &str, id: &str, options: &str) -> anyhow::Result<()> {
        let () = self.stage.redis()?.hset(self.keys().rule_options(symbol), id, options)?;
        Ok(())
    }

    /// The names of this scene's keys.
    pub(crate) fn keys(&self) -> Keys {
        Keys::new(&self.config.namespace)
    }

    /// A field of a source partition's hash; empty if it is not there.
    pub(crate) fn source_field(&self, partition: i32, field: &str) -> anyhow::Result<String> {
        let key = self.keys().source(&self.partition(partition));
        let value: Option<String> = self.stage.redis()?.hget(key, field)?;
        Ok(value.unwrap_or_default())
    }

    /// Waits until a field of a source partition's hash has a value.
    pub(crate) fn wait_for_source(&self, partition: i32, field: &str, value: &str) -> anyhow::Result<()> {
        let mut found = String::new();
        wait_until(PATIENCE, &format!("{field} = {value} on partition {partition}"), || {
            found = self.source_field(partition, field).unwrap_or_else(|error| error.to_string());
            found == value
        })
        .with_context(|| format!("found {found:?}"))
    }

    /// A source partition.
    pub(crate) fn partition(&self, partition: i32) -> SourcePartition {
        SourcePartition { topic: self.config.kafka.topic.clone(), partition }
    }

    /// Runs a worker over what is in the topic now, as `run --until-end` does.
    pub(crate) fn run_until_end(&self) -> anyhow::Result<Summary> {
        let run = supervisor::run(&self.config, Health::starting(), true, std::future::pending());
        let summary = self.stage.block_on(async { tokio::time::timeout(PATIENCE, run).await });
        summary.context("the run did not reach its end")?
    }

    /// Starts a worker that runs until it is stopped or dropped.
    pub(crate) fn start(&self) -> Running<'a> {
        let (stop, stopped) = oneshot::channel::<()>();
        let health = Health::starting();
        let (config, its_health) = (self.config.clone(), health.clone());
        let handle = self.stage.runtime().spawn(async move {
            let shutdown = async {
                let _ = stopped.await; // dropped or sent: both mean stop
            };
            supervisor::run(&config, its_health, false, shutdown).await
        });
        Running { stage: self.stage, health, stop, handle }
    }

    /// What was sent to the candle topic, each as [`Candle`] tells it, sorted.
    pub(crate) fn candles(&self) -> anyhow::Result<Vec<String>> {
        let mut told: Vec<String> = self.candle_list()?.iter().map(ToString::to_string).collect();
        told.sort();
        Ok(told)
    }

    /// What was sent to the candle topic, in order.
    pub(crate) fn candle_list(&self) -> anyhow::Result<Vec<Candle>> {
        self.output(&self.config.output.candles)?.iter().map(|record| parse(&record.value)).collect()
    }

    /// Waits until so many candles were sent; fails at once if there are more.
    pub(crate) fn wait_for_candles(&self, count: usize) -> anyhow::Result<Vec<String>> {
        wait_for_count("candles", count, || self.candles())
    }

    /// What was sent to the notification topic, each as [`Notification`] tells it, sorted.
    pub(crate) fn notifications(&self) -> anyhow::Result<Vec<String>> {
        let mut told: Vec<String> = self.notification_list()?.iter().map(ToString::to_string).collect();
        told.sort();
        Ok(told)
    }

    /// What was sent to the notification topic, in order.
    pub(crate) fn notification_list(&self) -> anyhow::Result<Vec<Notification>> {
        self.output(&self.config.output.notifications)?.iter().map(|record| parse(&record.value)).collect()
    }

    /// Waits until so many notifications were sent; fails at once if there are more.
    pub(crate) fn wait_for_notifications(&self, count: usize) -> anyhow::Result<Vec<String>> {
        wait_for_count("notifications", count, || self.notifications())
    }

    /// What was sent to the dead-letter topic.
    pub(crate) fn dead_letters(&self) -> anyhow::Result<Vec<Record>> {
        self.output(&self.config.dead_letter_topic())
    }

    /// Waits until so many records were sent to the dead-letter topic; fails at once if there are more.
    pub(crate) fn wait_for_dead_letters(&self, count: usize) -> anyhow::Result<Vec<Record>> {
        wait_for_count("dead letters", count, || self.dead_letters())
    }

    /// What was sent to a topic of outputs.
    pub(crate) fn output(&self, topic: &str) -> anyhow::Result<Vec<Record>> {
        self.stage.consume_all(topic, Isolation::ReadCommitted)
    }
}

fn wait_for_count<T: fmt::Debug>(
    what: &str,
    count: usize,
    mut read: impl FnMut() -> anyhow::Result<Vec<T>>,
) -> anyhow::Result<Vec<T>> {
    let mut found = Ok(Vec::new());
    let waited = wait_until(PATIENCE, &format!("{count} {what}"), || {
        found = read();
        !found.as_ref().is_ok_and(|found| found.len() < count)
    });
    let found = found?;
    if found.len() != count {
        waited.with_context(|| format!("found {found:#?}"))?;
        bail!("expected {count} {what}, found {found:#?}");
    }
    Ok(found)
}

/// A worker that runs in this process. Dropping it stops it.
pub(crate) struct Running<'a> {
    stage: &'a Stage,
    health: Health,
    stop: oneshot::Sender<()>,
    handle: JoinHandle<anyhow::Result<Summary>>,
}

impl Running<'_> {
    /// What `/readyz` would say against it.
    pub(crate) fn reasons_against(&self) -> Vec<String> {
        self.health.reasons_against()
    }

    /// Stops it in good order.
    pub(crate) fn stop(self) -> anyhow::Result<Summary> {
        drop(self.stop);
        let ended = self.stage.block_on(async { tokio::time::timeout(PATIENCE, self.handle).await });
        ended.context("the worker did not end")??
    }
}

/// A candle as it was sent, its numbers as they are written. Shown as
/// `<symbol> <interval> <start, ms after MINUTE> <open> <high> <low> <close> <volume> <count> <status>`.
#[derive(Debug, Deserialize)]
pub(crate) struct Candle {
    pub(crate) symbol: String,
    pub(crate) interval: String,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) open: Box<RawValue>,
    pub(crate) high: Box<RawValue>,
    pub(crate) low: Box<RawValue>,
    pub(crate) close: Box<RawValue>,
    pub(crate) volume: Box<RawValue>,
    pub(crate) count: u64,
    pub(crate) status: String,
    pub(crate) revision: i64,
    /// Of an open candle.
    pub(crate) source: Option<CandleSource>,
}

/// Up to where an open candle holds.
#[derive(Debug, Deserialize)]
pub(crate) struct CandleSource {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) next_offset: i64,
}

impl fmt::Display for Candle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candle { symbol, interval, start, open, high, low, close, volume, count, status, .. } = self;
        let start = start - MINUTE;
        write!(f, "{symbol} {interval} {start} {open} {high} {low} {close} {volume} {count} {status}")
    }
}

/// A notification as it was sent, its numbers as they are written. Shown as
/// `<symbol> <rule> <trigger> <op> <threshold>: <previous> -> <price>`.
#[derive(Debug, Deserialize)]
pub(crate) struct Notification {
    pub(crate) id: String,
    pub(crate) symbol: String,
    pub(crate) rule: String,
    pub(crate) trigger: String,
    pub(crate) op: String,
    pub(crate) threshold: Box<RawValue>,
    pub(crate) previous: Option<Box<RawValue>>,
    pub(crate) price: Box<RawValue>,
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Notification { symbol, rule, trigger, op, threshold, price, .. } = self;
        let previous = self.previous.as_ref().map_or("none", |previous| previous.get());
        write!(f, "{symbol} {rule} {trigger} {op} {threshold}: {previous} -> {price}")
    }
}

fn parse<'a, T: Deserialize<'a>>(value: &'a str) -> anyhow::Result<T> {
    serde_json::from_str(value).with_context(|| format!("unexpected output {value}"))
}

/// A tick of volume 1, keyed by its symbol. The price as JSON (`9505`, `"9505"`, `0`).
pub(crate) fn tick(symbol: &str, price: &str, ts: i64) -> Message {
    tick_of_volume(symbol, price, "1", ts)
}

/// A tick, keyed by its symbol. Price and volume as JSON.
pub(crate) fn tick_of_volume(symbol: &str, price: &str, volume: &str, ts: i64) -> Message {
    let name = serde_json::Value::from(symbol);
    let value = format!(r#"{{"symbol":{name},"price":{price},"volume":{volume},"ts":{ts}}}"#);
    Message::from((symbol, value))
}

/// A message for a partition.
pub(crate) fn to(partition: i32, message: Message) -> Message {
    Message { partition: Some(partition), ..message }
}

/// `1s 1m`
pub(crate) fn intervals(names: &str) -> Vec<Interval> {
    names.split(' ').map(|name| name.parse().expect("the test names valid intervals")).collect()
}

/// A plain decimal, quoted or not, as the whole number of its 10^-18ths.
pub(crate) fn exact(text: &str) -> i128 {
    const PLACES: usize = 18;
    let text = text.trim_matches('"');
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= PLACES, "{text} has more than {PLACES} places");
    let digits = format!("{whole}{fraction:0<PLACES$}");
    digits.parse().unwrap_or_else(|_| panic!("{text} is no plain decimal"))
}
