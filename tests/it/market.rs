//! A source topic, the rules on it, what the oracle expects of both, and what came out.
//!
//! Everything that is compared is a map of text, so that one function shows any difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rdkafka::consumer::BaseConsumer;
use redis::Commands as _;
use tickwatch::config::{Config, Emit};

pub(crate) use crate::common::facts::{Expected, Facts, Received, assert_same, plain};
use crate::common::{facts, kafka, rules, updates};
use crate::harness::{self, Message, Stage, Worker, process_of, wait_until};
use crate::oracle;

/// When the streams of these tests begin, ms: in the past, so that no tick is ahead of a clock.
pub(crate) const BEGIN: i64 = 1_700_000_000_000;

/// How long a worker may take to deliver what a test sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// One trade.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub(crate) symbol: String,
    /// In hundredths.
    pub(crate) price: i64,
    /// In hundredths.
    pub(crate) volume: i64,
    /// Event time, ms.
    pub(crate) ts: i64,
    /// `None`: by the symbol.
    pub(crate) partition: Option<i32>,
}

/// A tick of `price` whole units at `ms` after [`BEGIN`].
pub(crate) fn tick(symbol: &str, price: i64, ms: i64) -> Tick {
    Tick { symbol: symbol.into(), price: price * 100, volume: 100, ts: BEGIN + ms, partition: None }
}

/// A source topic of a test's own.
pub(crate) struct Market<'s> {
    stage: &'s Stage,
    pub(crate) config: Config,
    /// Where the test itself looks at Redis, if not as the worker does.
    pub(crate) admin: Option<String>,
    partitions: i32,
    rules: Vec<oracle::Rule>,
    log: Mutex<BTreeMap<(i32, i64), Sent>>,
}

/// What is at an offset.
#[derive(Debug, Clone)]
enum Sent {
    Tick(Tick),
    /// A record that is no tick, with its key and value.
    Bad(String, String),
}

impl<'s> Market<'s> {
    /// Makes the topics. Time passes by ticks alone: no silence ever closes a window, however slow the machine is.
    pub(crate) fn open(
        stage: &'s Stage,
        partitions: i32,
        change: impl FnOnce(&mut Config),
    ) -> anyhow::Result<Self> {
        let mut config = stage.config();
        config.worker.heartbeat = Duration::from_millis(200);
        config.candles.intervals = vec!["100ms".parse()?, "1s".parse()?];
        config.candles.lateness = Duration::from_millis(300);
        config.candles.idle_grace = Duration::from_hours(1);
        change(&mut config);
        stage.create_topic(&config.kafka.topic, partitions)?;
        for topic in [&config.output.notifications, &config.output.candles] {
            stage.create_topic(topic, 2)?;
        }
        stage.create_topic(&config.dead_letter_topic(), 1)?;
        stage.create_topic(&config.late_topic(), 1)?;
        Ok(Market { stage, config, admin: None, partitions, rules: Vec::new(), log: Mutex::default() })
    }

    /// Where the test runs.
    pub(crate) fn stage(&self) -> &'s Stage {
        self.stage
    }

    /// Waits for a condition as long as a worker may take.
    #[allow(clippy::unused_self)] // reads as what it is at its callers
    pub(crate) fn wait_for(&self, what: &str, condition: impl FnMut() -> bool) -> anyhow::Result<()> {
        wait_until(PATIENCE, what, condition)
    }

    /// A connection to this market's Redis: under Sentinel, to whoever is the primary now.
    pub(crate) fn redis(&self) -> anyhow::Result<redis::Connection> {
        match &self.admin {
            Some(url) => harness::connect(url),
            None => harness::connect_to_primary(&self.config.redis),
        }
    }

    /// The key with this market's prefix in front.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.namespace)
    }

    /// The key of a source partition.
    pub(crate) fn source_key(&self, partition: i32) -> String {
        self.key(&format!("source:{}/{partition}", self.config.kafka.topic))
    }

    /// Adds a rule that stays as it is for the whole test, by one ZADD. `threshold` in hundredths.
    pub(crate) fn put_rule(
        &mut self,
        symbol: &str,
        trigger: &'static str,
        op: &'static str,
        threshold: i64,
        id: &str,
    ) -> anyhow::Result<()> {
        let (symbol, id, threshold) = (symbol.to_owned(), id.to_owned(), plain(threshold));
        let rule = oracle::Rule { symbol, id, trigger, op, threshold, ..oracle::Rule::default() };
        rules::put(&mut self.redis()?, &self.config, &rule)?;
        self.rules.push(rule);
        Ok(())
    }

    /// Sends ticks in order and waits until the broker has them.
    pub(crate) fn send(&self, ticks: impl IntoIterator<Item = Tick>) -> anyhow::Result<()> {
        let ticks: Vec<Tick> = ticks.into_iter().collect();
        let messages = ticks.iter().map(|tick| Message {
            key: Some(tick.symbol.clone()),
            value: tick.json(),
            partition: tick.partition,
            ..Message::default()
        });
        let places = self.stage.produce(&self.config.kafka.topic, messages)?;
        let mut log = self.log.lock().unwrap();
        log.extend(places.into_iter().zip(ticks.into_iter().map(Sent::Tick)));
        Ok(())
    }

    /// Sends a record that is no tick.
    pub(crate) fn send_bad(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let places = self.stage.produce(&self.config.kafka.topic, [(key, value)])?;
        self.log.lock().unwrap().insert(places[0], Sent::Bad(key.into(), value.into()));
        Ok(())
    }

    /// Sends to each partition a tick so late in the day that every window before it closes.
    pub(crate) fn send_closing(&self) -> anyhow::Result<()> {
        let day = 86_400_000;
        self.send(
            (0..self.partitions)
                .map(|number| Tick { partition: Some(number), ..tick(&format!("CLOSE-{number}"), 1, day) }),
        )
    }

    /// Sends ticks of `walk` in small lots, beside `action`, until that returns.
    pub(crate) fn under_load<T>(
        &self,
        walk: &mut Walk,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        const LOT: usize = 50;
        const PAUSE: Duration = Duration::from_millis(150);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let load = scope.spawn(|| -> anyhow::Result<()> {
                while !done.load(Ordering::Relaxed) {
                    self.send(walk.by_ref().take(LOT))?;
                    thread::sleep(PAUSE);
                }
                Ok(())
            });
            let result = action();
            done.store(true, Ordering::Relaxed);
            load.join().expect("the load does not panic")?;
            result
        })
    }

    /// The next offset of each partition.
    fn ends(&self) -> BTreeMap<i32, i64> {
        let log = self.log.lock().unwrap();
        let end =
            |number| log.range((number, 0)..(number + 1, 0)).next_back().map_or(0, |((_, offset), _)| offset + 1);
        (0..self.partitions).map(|number| (number, end(number))).collect()
    }

    /// Waits until everything sent is in Redis.
    pub(crate) fn wait_applied(&self) -> anyhow::Result<()> {
        let (ends, mut redis) = (self.ends(), self.redis()?);
        wait_until(PATIENCE, "everything sent to be applied", || {
            ends.iter().all(|(number, end)| {
                redis.hget::<_, _, Option<i64>>(self.source_key(*number), "next_offset").ok().flatten()
                    == Some(*end)
            })
        })
    }

    /// Waits until work is under way on every partition: for faults in the middle of it.
    pub(crate) fn wait_under_way(&self) -> anyhow::Result<()> {
        let mut redis = self.redis()?;
        wait_until(PATIENCE, "work on every partition", || {
            (0..self.partitions).all(|number| {
                let applied: Option<i64> = redis.hget(self.source_key(number), "next_offset").ok().flatten();
                applied.is_some_and(|applied| applied > 50)
            })
        })
    }

    /// Waits until everything sent is applied, delivered and committed.
    pub(crate) fn wait_delivered(&self) -> anyhow::Result<()> {
        self.wait_applied()?;
        let (ends, mut redis) = (self.ends(), self.redis()?);
        let group = self.group_reader()?;
        let mut seen = String::new();
        wait_until(PATIENCE, "everything sent to be delivered", || {
            let mut pending = 0;
            for number in 0..self.partitions {
                let outbox = self.key(&format!("outbox:{}/{number}", self.config.kafka.topic));
                pending += redis.xlen::<_, usize>(outbox).unwrap_or(1);
            }
            let committed = self.committed(&group).unwrap_or_default();
            seen = format!("{pending} in the outbox, committed {committed:?} of {ends:?}");
            pending == 0 && committed == ends
        })
        .with_context(|| seen.clone())
    }

    fn group_reader(&self) -> anyhow::Result<BaseConsumer> {
        kafka::group_reader(self.stage.brokers(), &self.config.kafka.group)
    }

    /// The committed offset of each partition, in their order.
    pub(crate) fn committed_offsets(&self) -> anyhow::Result<Vec<i64>> {
        Ok(self.committed(&self.group_reader()?)?.into_values().collect())
    }

    fn committed(&self, group: &BaseConsumer) -> anyhow::Result<BTreeMap<i32, i64>> {
        kafka::committed(group, &self.config.kafka.topic, 0..self.partitions, Duration::from_secs(5))
    }

    /// The process that owns each partition, by Redis; 0 where none ever did.
    pub(crate) fn owners(&self) -> anyhow::Result<Vec<u32>> {
        let mut redis = self.redis()?;
        (0..self.partitions)
            .map(|number| {
                let owner: Option<String> = redis.hget(self.source_key(number), "owner")?;
                Ok(owner.as_deref().and_then(process_of).unwrap_or(0))
            })
            .collect()
    }

    /// Everything in the output topics. Two records of one name must be equal.
    pub(crate) fn received(&self) -> anyhow::Result<Received> {
        let received = Received::read(&self.config, self.stage.brokers())?;
        ensure!(received.conflicts.is_empty(), "{}", received.conflicts.join("\n"));
        Ok(received)
    }

    /// What is in Redis: last prices, candles, running counts.
    pub(crate) fn state(&self) -> anyhow::Result<Facts> {
        facts::state(&self.config, &mut self.redis()?)
    }

    /// What the oracle expects of everything sent so far.
    pub(crate) fn expected(&self) -> Expected {
        let mut expected = Expected::default();
        for number in 0..self.partitions {
            self.expect_partition(number, &mut expected);
        }
        expected
    }

    fn expect_partition(&self, number: i32, expected: &mut Expected) {
        let (mut ticks, mut dead) = (Vec::new(), BTreeMap::new());
        for (&(_, offset), sent) in self.log.lock().unwrap().range((number, 0)..(number + 1, 0)) {
            match sent {
                Sent::Tick(tick) => ticks.push(oracle::LogRecord { offset, ticks: vec![tick.for_oracle()] }),
                Sent::Bad(key, value) => {
                    dead.insert(offset, format!("{key} -> {value}"));
                }
            }
        }
        let found = oracle::expected(&facts::oracle_settings(&self.config, number), &self.rules, &ticks);
        expected.add(&self.config, number, &found, ticks.len(), &dead);
    }

    /// Checks topics and Redis against the oracle. Returns the names of records that were repeated, word for
    /// word.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        let expected = self.expected();
        let received = self.received()?;
        assert_same("outputs", &expected.outputs, &received.outputs)?;
        assert_same("state", &expected.state, &self.state()?)?;
        self.check_updates(&received.candles)?;
        Ok(received.repeated)
    }

    /// Checks what was sent of open candles: nothing, unless the settings say so.
    fn check_updates(&self, candles: &[kafka::Record]) -> anyhow::Result<()> {
        let mut log = updates::Log::new();
        for (&(number, offset), sent) in self.log.lock().unwrap().iter() {
            if let Sent::Tick(tick) = sent {
                log.entry(number).or_default().push((offset, None, tick.for_oracle()));
            }
        }
        let differences = updates::judge(&self.config, &log, candles, updates::Run::default())?;
        let shown: Vec<&str> = differences.iter().take(6).map(|difference| difference.text.as_str()).collect();
        ensure!(shown.is_empty(), "{} differences in updates:\n{}", differences.len(), shown.join("\n"));
        let sent = updates::last_updates(candles)?;
        ensure!(sent.is_empty() == (self.config.output.emit == Emit::Final), "open candles: {sent:?}");
        Ok(())
    }

    /// [`Market::check`], and that nothing was repeated; else the workers' logs say why.
    pub(crate) fn check_each_once(&self, workers: &[&Worker]) -> anyhow::Result<()> {
        let repeated = self.check()?;
        let logs = || workers.iter().map(|worker| worker.logs()).collect::<Vec<_>>().join("\n");
        ensure!(repeated.is_empty(), "sent more than once: {repeated:?}\n{}", logs());
        Ok(())
    }

    /// Checks that notifications of one symbol come in the order of their ticks.
    pub(crate) fn check_order(&self) -> anyhow::Result<()> {
        let mut last = BTreeMap::new();
        for record in self.stage.consume_all(&self.config.output.notifications, facts::isolation(&self.config))? {
            let offset = record.json()?["source"]["offset"].as_i64().context("an offset")?;
            let before = last.insert(record.key.clone(), offset).unwrap_or(-1);
            ensure!(before <= offset, "{:?}: {offset} after {before}", record.key);
        }
        Ok(())
    }
}

impl Tick {
    fn for_oracle(&self) -> oracle::Tick {
        let (symbol, ts) = (self.symbol.clone(), self.ts);
        oracle::Tick { symbol, price: plain(self.price), volume: plain(self.volume), ts }
    }

    /// The value of its record.
    pub(crate) fn json(&self) -> String {
        let (price, volume) = (plain(self.price), plain(self.volume));
        format!(r#"{{"symbol":"{}","price":{price},"volume":{volume},"ts":{}}}"#, self.symbol, self.ts)
    }
}

/// An endless stream of ticks of several symbols: prices wander, some ticks come late, some share a time.
pub(crate) struct Walk {
    random: StdRng,
    prices: BTreeMap<String, i64>,
    symbols: Vec<String>,
    now: i64,
    /// How far back a tick may lie, ms.
    disorder: i64,
}

/// Half of what comes out of order comes this late at most, ms: some of it is still on time.
const NEAR: i64 = 500;

/// Where every walk starts, in hundredths.
pub(crate) const START_PRICE: i64 = 10_000;

impl Walk {
    /// A walk of `symbols`, the same for the same seed.
    pub(crate) fn new(seed: u64, symbols: impl IntoIterator<Item = impl Into<String>>, disorder: i64) -> Walk {
        let symbols: Vec<String> = symbols.into_iter().map(Into::into).collect();
        Walk { random: StdRng::seed_from_u64(seed), prices: BTreeMap::new(), symbols, now: BEGIN, disorder }
    }
}

impl Iterator for Walk {
    type Item = Tick;

    fn next(&mut self) -> Option<Tick> {
        let symbol = self.symbols[self.random.random_range(0..self.symbols.len())].clone();
        let price = self.prices.entry(symbol.clone()).or_insert(START_PRICE);
        *price = (*price + self.random.random_range(-150..=150)).max(1);
        let price = *price;
        self.now += self.random.random_range(0..8);
        let reach = if self.random.random_bool(0.5) { self.disorder } else { self.disorder.min(NEAR) };
        let back = if self.random.random_bool(0.1) { self.random.random_range(0..=reach) } else { 0 };
        let volume = self.random.random_range(0..1_000);
        Some(Tick { symbol, price, volume, ts: self.now - back, partition: None })
    }
}

/// Every tick of a few symbols fires, crossings of all.
pub(crate) fn put_rules(market: &mut Market) -> anyhow::Result<()> {
    for number in 0..SYMBOLS {
        market.put_rule(&symbol(number), "edge", ">=", START_PRICE, "edge")?;
        market.put_rule(&symbol(number), "level", "<", START_PRICE - 300, "level")?;
    }
    Ok(())
}

const SYMBOLS: u32 = 24;

fn symbol(number: u32) -> String {
    format!("SYM-{number}")
}

/// Ticks of all symbols, a little out of order, some of them late.
pub(crate) fn walk(seed: u64) -> Walk {
    Walk::new(seed, (0..SYMBOLS).map(symbol), 500)
}

/// How long a group may take to settle.
pub(crate) const SETTLED: Duration = Duration::from_secs(20);

/// Starts workers and waits until each answers that it is ready.
pub(crate) fn start(market: &Market, count: usize) -> anyhow::Result<Vec<Worker>> {
    let mut workers = (0..count).map(|_| Worker::start(&market.config)).collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut workers {
        worker.wait_ready()?;
    }
    Ok(workers)
}

/// Waits until each worker owns a partition, and nobody else does.
pub(crate) fn wait_shared(market: &Market, workers: &[Worker]) -> anyhow::Result<()> {
    let all: BTreeSet<u32> = workers.iter().map(Worker::pid).collect();
    wait_until(SETTLED, "each worker to own a partition", || {
        market.owners().is_ok_and(|owners| BTreeSet::from_iter(owners) == all)
    })
    .with_context(|| format!("{:?} for {all:?}", market.owners()))
}

/// Waits until every partition is owned by one of the workers.
pub(crate) fn wait_owned_by(market: &Market, workers: &[Worker], patience: Duration) -> anyhow::Result<()> {
    let all: BTreeSet<u32> = workers.iter().map(Worker::pid).collect();
    wait_until(patience, "the workers to own every partition", || {
        market.owners().is_ok_and(|owners| owners.iter().all(|owner| all.contains(owner)))
    })
    .with_context(|| format!("{:?} for {all:?}", market.owners()))
}
