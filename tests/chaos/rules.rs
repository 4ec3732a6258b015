//! Rules of a run: those that stay, and those that are put and removed while ticks flow.
//!
//! When exactly a live rule takes effect is a race with the ticks on their way, so it has offsets at which it must
//! fire, offsets at which it may, and offsets at which it must not.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tickwatch::config::Config;

use crate::common::facts::plain;
use crate::common::kafka::{committed, group_reader};
use crate::common::oracle;
use crate::common::rules::{put, remove};
use crate::plan::{Plan, Time};
use crate::traffic::{BEGIN, START_PRICE, symbols_of};

/// How long a broker that may be away is waited for.
pub(crate) const BROKER_PATIENCE: Duration = Duration::from_secs(2);

/// Rules that are there before the first tick and stay, or go by themselves.
pub(crate) fn lasting(plan: &Plan, rng: &mut StdRng) -> Vec<oracle::Rule> {
    let mut rules = Vec::new();
    for (symbol, _) in symbols_of(plan, plan.partitions + 2) {
        let mut put = |id: &str, trigger, op, threshold: i64, options: oracle::Rule| {
            let (symbol, id, threshold) = (symbol.clone(), id.to_owned(), plain(threshold));
            rules.push(oracle::Rule { symbol, id, trigger, op, threshold, ..options });
        };
        let none = oracle::Rule::default;
        put("up", "edge", ">=", START_PRICE, none());
        put("down and out", "edge", "<", START_PRICE - rng.random_range(0..400), none());
        if rng.random_bool(0.3) {
            put("low", "level", "<", START_PRICE - rng.random_range(100..900), none());
        }
        if rng.random_bool(0.4) {
            put("once", "edge", ">", START_PRICE + 200, oracle::Rule { once: true, ..none() });
        }
        if rng.random_bool(0.4) {
            let note = Some("calm \"down\"".to_owned());
            put("calm", "level", ">=", START_PRICE, oracle::Rule { cooldown: Some(2_000), note, ..none() });
        }
        if rng.random_bool(0.2) && plan.time != Time::Clock {
            put("gone", "level", "<=", START_PRICE, oracle::Rule { expires: Some(BEGIN + 8_000), ..none() });
        }
    }
    rules
}

/// Everything up to here is certainly so; everything from there on.
const ALL: i64 = i64::MAX;

/// A rule that came, and perhaps went, while ticks flowed.
#[derive(Debug, Clone)]
pub(crate) struct LiveRule {
    pub(crate) rule: oracle::Rule,
    pub(crate) partition: i32,
    /// Below, it must not fire: delivered before the rule was there.
    may_from: i64,
    /// From here on nothing was in the log when the rule was there.
    must_from: i64,
    /// From here on it need not fire.
    must_to: i64,
    /// From here on it must not fire: not in the log yet when the rule was gone.
    may_to: i64,
    /// A Redis that came back older may have had the rule, or not.
    uncertain: Vec<(i64, i64)>,
    removed: bool,
}

impl LiveRule {
    pub(crate) fn may_fire(&self, offset: i64) -> bool {
        (self.may_from..self.may_to).contains(&offset)
    }

    pub(crate) fn must_fire(&self, offset: i64) -> bool {
        (self.must_from..self.must_to).contains(&offset)
            && !self.uncertain.iter().any(|(from, to)| (*from..*to).contains(&offset))
    }
}

/// The live rules of a run, and the positions around each change of them.
pub(crate) struct LiveRules<'a> {
    plan: &'a Plan,
    config: &'a Config,
    pub(crate) rules: Vec<LiveRule>,
}

/// Most live rules on one symbol: with the lasting ones, fewer than may fire at one tick.
const MOST_A_SYMBOL: usize = 3;

impl<'a> LiveRules<'a> {
    pub(crate) fn new(plan: &'a Plan, config: &'a Config) -> LiveRules<'a> {
        LiveRules { plan, config, rules: Vec::new() }
    }

    /// Puts a rule on a symbol. `None` if there are enough.
    pub(crate) fn add(
        &mut self,
        redis: &mut redis::Connection,
        rng: &mut StdRng,
    ) -> anyhow::Result<Option<String>> {
        let symbols = symbols_of(self.plan, self.plan.partitions);
        // The first symbols have the most ticks.
        let (symbol, partition) = symbols[rng.random_range(0..symbols.len().min(4))].clone();
        if self.rules.iter().filter(|live| live.rule.symbol == symbol).count() >= MOST_A_SYMBOL {
            return Ok(None);
        }
        let trigger = *["edge", "level"].choose(rng).context("not empty")?;
        let op = *["<", "<=", ">=", ">"].choose(rng).context("not empty")?;
        let threshold = plain(START_PRICE + rng.random_range(-300..300));
        let id = format!("live {}", self.rules.len());
        let rule = oracle::Rule { symbol, id, trigger, op, threshold, ..oracle::Rule::default() };
        let may_from = self.delivered(partition);
        put(redis, self.config, &rule)?;
        let must_from = self.end(partition);
        let told = format!("{} {} {} {}", rule.symbol, rule.trigger, rule.op, rule.threshold);
        self.rules.push(LiveRule {
            rule,
            partition,
            may_from: may_from.unwrap_or(0),
            must_from: must_from.unwrap_or(ALL),
            must_to: ALL,
            may_to: ALL,
            uncertain: Vec::new(),
            removed: false,
        });
        Ok(Some(told))
    }

    /// Removes one of the rules put. `None` if there is none.
    pub(crate) fn remove(
        &mut self,
        redis: &mut redis::Connection,
        rng: &mut StdRng,
    ) -> anyhow::Result<Option<String>> {
        let there: Vec<usize> = (0..self.rules.len()).filter(|number| !self.rules[*number].removed).collect();
        let Some(&number) = there.choose(rng) else { return Ok(None) };
        let partition = self.rules[number].partition;
        let must_to = self.delivered(partition).unwrap_or(0);
        remove(redis, self.config, &self.rules[number].rule)?;
        let may_to = self.end(partition).unwrap_or(ALL);
        let live = &mut self.rules[number];
        (live.must_to, live.may_to, live.removed) = (must_to, may_to, true);
        Ok(Some(format!("{} {}", live.rule.symbol, live.rule.id)))
    }

    /// What was delivered before Redis came back older, by partition.
    pub(crate) fn before_rollback(&self) -> BTreeMap<i32, i64> {
        let partitions = self.rules.iter().map(|live| live.partition);
        partitions.map(|partition| (partition, self.delivered(partition).unwrap_or(0))).collect()
    }

    /// Puts all rules as they have to be, as an operator does from a backup.
    pub(crate) fn after_rollback(
        &mut self,
        redis: &mut redis::Connection,
        delivered: &BTreeMap<i32, i64>,
    ) -> anyhow::Result<()> {
        for live in &self.rules {
            if live.removed {
                remove(redis, self.config, &live.rule)?;
            } else {
                put(redis, self.config, &live.rule)?;
            }
        }
        for number in 0..self.rules.len() {
            let partition = self.rules[number].partition;
            let end = self.end(partition).unwrap_or(ALL);
            let live = &mut self.rules[number];
            if live.removed {
                live.may_to = live.may_to.max(end);
            }
            live.uncertain.push((delivered.get(&partition).copied().unwrap_or(0), end));
        }
        Ok(())
    }

    /// The committed offset; `None` if the broker is away.
    fn delivered(&self, partition: i32) -> Option<i64> {
        let (group, topic) = (consumer(self.config).ok()?, &self.config.kafka.topic);
        let committed = committed(&group, topic, [partition], BROKER_PATIENCE).ok()?;
        committed.get(&partition).map(|offset| (*offset).max(0))
    }

    /// The end of the log; `None` if the broker is away.
    fn end(&self, partition: i32) -> Option<i64> {
        let consumer = consumer(self.config).ok()?;
        let (_, end) = consumer.fetch_watermarks(&self.config.kafka.topic, partition, BROKER_PATIENCE).ok()?;
        Some(end)
    }
}

/// A client that is no member of the group.
pub(crate) fn consumer(config: &Config) -> anyhow::Result<BaseConsumer> {
    group_reader(&config.kafka.brokers, &config.kafka.group)
}
