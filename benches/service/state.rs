//! Workers over a Redis that holds the state of many symbols: last prices and open candles, no window ever closing.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tickwatch::config::Config;
use tickwatch::sandbox::Redis;

use crate::accounting::Progress;
use crate::clients::Sender;
use crate::common::connect;
use crate::common::worker::Worker;
use crate::contenders::{Job, Once, worker_config};
use crate::lab::{Lab, Names, patience, put_rules, start_redis};
use crate::market::{Rule, Trigger, decimal, symbol_name};

/// Event time of every tick, ms.
const BEGIN: i64 = 1_700_000_000_000;
/// The price of every tick, in hundredths; a rule matches it.
const PRICE: i64 = 950_525;
/// Event time between two ticks of a symbol, ms.
const APART: i64 = 40;

/// A group on one partition, with state in Redis.
pub(crate) struct Group<'a> {
    lab: &'a Lab,
    pub(crate) redis: Redis,
    pub(crate) config: Config,
    names: Names,
    sender: Sender,
    /// Records sent so far.
    sent: u64,
}

impl<'a> Group<'a> {
    /// Nothing is running yet. Symbol 0 has a rule that fires on each tick.
    pub(crate) fn new(lab: &'a Lab) -> anyhow::Result<Group<'a>> {
        let names = lab.output_topics("state")?;
        let topic = lab.source_topic(1)?;
        let redis = start_redis()?;
        let rule = Rule { id: "alice".into(), trigger: Trigger::Level, op: ">=", threshold: PRICE };
        let rules = [rule];
        put_rules(&mut connect(&redis.url())?, 1, &rules)?;
        let job = Job { topic: &topic, names: &names, symbols: 1, rules: &rules, intervals: &["1m"] };
        let mut config = worker_config(lab, &job, &redis, Once::AtLeast)?;
        config.candles.lateness = Duration::from_hours(1);
        config.candles.idle_grace = Duration::from_hours(1);
        let sender = Sender::new(lab.brokers(), &topic)?;
        Ok(Group { lab, redis, config, names, sender, sent: 0 })
    }

    /// A worker, ready.
    pub(crate) fn worker(&self) -> anyhow::Result<Worker> {
        let mut worker = Worker::start(&self.config)?;
        worker.wait_ready()?;
        Ok(worker)
    }

    /// Sends so many ticks of each symbol and waits until the group has committed them.
    pub(crate) fn fill(&mut self, symbols: u32, ticks: i64) -> anyhow::Result<()> {
        for number in 0..ticks {
            for symbol in 1..=symbols {
                self.send(symbol, BEGIN + number * APART)?;
            }
        }
        let topic = &self.config.kafka.topic;
        let progress = Progress::new(self.lab.brokers(), &self.names.group, topic, 1)?;
        let deadline = Instant::now() + patience(self.sent);
        while progress.committed() != Some(self.sent) {
            ensure!(Instant::now() < deadline, "{} ticks were not worked through in time", self.sent);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Sends a tick that fires.
    pub(crate) fn send_alert(&mut self) -> anyhow::Result<()> {
        self.send(0, BEGIN + APART)
    }

    fn send(&mut self, symbol: u32, ts: i64) -> anyhow::Result<()> {
        let (symbol, price) = (symbol_name(symbol), decimal(PRICE));
        let value = format!(r#"{{"symbol":"{symbol}","price":{price},"volume":1200,"ts":{ts}}}"#);
        self.sent += 1;
        self.sender.send(&symbol, &value)
    }

    /// Deletes the topics; workers are to be stopped before.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        self.lab.delete_topics(&self.names.group)?;
        self.lab.delete_topics(&self.config.kafka.topic)
    }
}
