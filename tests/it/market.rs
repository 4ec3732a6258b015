//! A source topic, the rules on it, and what plain code expects a service to make of both.
//!
//! The expectation is worked out tick by tick, with integers, from what was sent: it shares nothing with the product.
//! Everything that is compared is a map of text, so that one function shows any difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use redis::Commands as _;
use tickwatch::config::{Config, Guarantee, LatePolicy, Numbers};

use crate::harness::{self, Isolation, Message, Record, Stage, wait_until};

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

/// A rule that stays as it is for the whole test.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    symbol: String,
    trigger: &'static str,
    op: &'static str,
    /// In hundredths.
    threshold: i64,
    id: String,
}

impl Rule {
    fn matches(&self, price: i64) -> bool {
        match self.op {
            "<" => price < self.threshold,
            "<=" => price <= self.threshold,
            "=" => price == self.threshold,
            ">=" => price >= self.threshold,
            _ => price > self.threshold,
        }
    }

    fn fires(&self, previous: Option<i64>, price: i64) -> bool {
        self.matches(price) && (self.trigger == "level" || previous.is_some_and(|previous| !self.matches(previous)))
    }

    fn set(&self) -> String {
        let direction = match self.op {
            "<" | "<=" => "below",
            "=" => "equal",
            _ => "above",
        };
        if self.trigger == "edge" { "edge".into() } else { format!("level:{direction}") }
    }
}

/// What is compared: a name for each thing → its content.
pub(crate) type Facts = BTreeMap<String, String>;

/// What came out of the output topics.
pub(crate) struct Received {
    /// `notification <id>`, `candle <symbol>:<interval>:<start>:<revision>`, `late <partition>/<offset>` and
    /// `dead letter <partition>/<offset>`, each with the record's value.
    pub(crate) outputs: Facts,
    /// Records that repeat another, word for word.
    pub(crate) repeated: usize,
}

/// Whether a run has closed what was open at the log's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Closed,
}

/// What plain code expects.
#[derive(Default)]
pub(crate) struct Expected {
    /// In the output topics; named as in [`Received`].
    pub(crate) outputs: Facts,
    /// In Redis: last prices, candles, running counts.
    pub(crate) state: Facts,
}

/// A source topic of a test's own.
pub(crate) struct Market<'s> {
    stage: &'s Stage,
    pub(crate) config: Config,
    partitions: i32,
    rules: Vec<Rule>,
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
    pub(crate) fn open(stage: &'s Stage, partitions: i32, change: impl FnOnce(&mut Config)) -> anyhow::Result<Self> {
        let mut config = stage.config();
        config.worker.heartbeat = Duration::from_millis(200);
        config.candles.intervals = vec!["100ms".parse()?, "1s".parse()?];
        config.candles.lateness = Duration::from_millis(300);
        config.candles.idle_grace = Duration::from_secs(3600);
        change(&mut config);
        stage.create_topic(&config.kafka.topic, partitions)?;
        for topic in [&config.output.notifications, &config.output.candles] {
            stage.create_topic(topic, 2)?;
        }
        stage.create_topic(&config.dead_letter_topic(), 1)?;
        stage.create_topic(&config.late_topic(), 1)?;
        Ok(Market { stage, config, partitions, rules: Vec::new(), log: Mutex::default() })
    }

    /// Where the test runs.
    pub(crate) fn stage(&self) -> &'s Stage {
        self.stage
    }

    /// A connection to this market's Redis.
    pub(crate) fn redis(&self) -> anyhow::Result<redis::Connection> {
        harness::connect(&self.config.redis.url)
    }

    /// The key with this market's prefix in front.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.namespace)
    }

    /// The key of a source partition.
    pub(crate) fn source_key(&self, partition: i32) -> String {
        self.key(&format!("source:{}/{partition}", self.config.kafka.topic))
    }

    /// Adds a rule, by one ZADD. `threshold` in hundredths.
    pub(crate) fn put_rule(
        &mut self,
        symbol: &str,
        trigger: &'static str,
        op: &'static str,
        threshold: i64,
        id: &str,
    ) -> anyhow::Result<()> {
        let rule = Rule { symbol: symbol.into(), trigger, op, threshold, id: id.into() };
        let key = self.key(&format!("rules:{}:{}", encoded(symbol), rule.set()));
        let _: () = self.redis()?.zadd(key, format!("{op} {id}"), plain(threshold))?;
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
        self.send((0..self.partitions).map(|number| Tick {
            partition: Some(number),
            ..tick(&format!("CLOSE-{number}"), 1, day)
        }))
    }

    /// Sends ticks of `walk` in small lots, beside `action`, until that returns.
    pub(crate) fn under_load<T>(
        &self,
        walk: &mut Walk,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        const LOT: usize = 50;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let load = scope.spawn(|| -> anyhow::Result<()> {
                while !done.load(Ordering::Relaxed) {
                    self.send(walk.by_ref().take(LOT))?;
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
        let end = |number| log.range((number, 0)..(number + 1, 0)).next_back().map_or(0, |((_, offset), _)| offset + 1);
        (0..self.partitions).map(|number| (number, end(number))).collect()
    }

    /// Waits until everything sent is in Redis.
    pub(crate) fn wait_applied(&self) -> anyhow::Result<()> {
        let (ends, mut redis) = (self.ends(), self.redis()?);
        wait_until(PATIENCE, "everything sent to be applied", || {
            ends.iter().all(|(number, end)| {
                redis.hget::<_, _, Option<i64>>(self.source_key(*number), "next_offset").ok().flatten() == Some(*end)
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
        Ok(ClientConfig::new()
            .set("bootstrap.servers", &self.config.kafka.brokers)
            .set("group.id", &self.config.kafka.group)
            .set("isolation.level", "read_committed")
            .create()?)
    }

    /// The committed offset of each partition.
    fn committed(&self, group: &BaseConsumer) -> anyhow::Result<BTreeMap<i32, i64>> {
        let mut asked = TopicPartitionList::new();
        for number in 0..self.partitions {
            asked.add_partition(&self.config.kafka.topic, number);
        }
        let found = group.committed_offsets(asked, Duration::from_secs(5))?;
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { -1 };
        Ok(found.elements().iter().map(|element| (element.partition(), offset(element.offset()))).collect())
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
        let (config, stage) = (&self.config, self.stage);
        let isolation = match config.kafka.processing_guarantee {
            Guarantee::AtLeastOnce => Isolation::ReadUncommitted,
            Guarantee::ExactlyOnce => Isolation::ReadCommitted,
        };
        let mut received = Received { outputs: Facts::new(), repeated: 0 };
        for record in stage.consume_all(&config.output.notifications, isolation)? {
            received.take(format!("notification {}", record.json()?["id"].as_str().unwrap_or_default()), &record)?;
        }
        for record in stage.consume_all(&config.output.candles, isolation)? {
            let value = record.json()?;
            let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| value[field].as_i64().unwrap_or(-1);
            let (symbol, interval) = (text("symbol"), text("interval"));
            received
                .take(format!("candle {symbol}:{interval}:{}:{}", number("start"), number("revision")), &record)?;
        }
        for (what, topic) in [("late", config.late_topic()), ("dead letter", config.dead_letter_topic())] {
            for record in stage.consume_all(&topic, isolation)? {
                ensure!(record.header("source.topic") == Some(&config.kafka.topic), "{record:?}");
                let header = |name| record.header(name).unwrap_or_default().to_owned();
                let mut name = format!("{what} {}/{}", header("source.partition"), header("source.offset"));
                if what == "late" {
                    write!(name, " for {}", header("late.intervals"))?;
                }
                received.take(name, &record)?;
            }
        }
        Ok(received)
    }

    /// What is in Redis: last prices, candles, running counts.
    pub(crate) fn state(&self) -> anyhow::Result<Facts> {
        const CANDLE: &[&str] =
            &["open", "high", "low", "close", "volume", "count", "open_ts", "close_ts", "status", "revision"];
        let families: [(&str, &[&str]); 3] = [
            ("last", &["price", "ts", "source"]),
            ("ohlc", CANDLE),
            ("source", &["ticks", "late", "out_of_order", "notifications", "dead_letters"]),
        ];
        let mut redis = self.redis()?;
        let mut state = Facts::new();
        for (family, fields) in families {
            let keys: Vec<String> = redis.keys(self.key(&format!("{family}:*")))?;
            for key in keys {
                let values: Vec<Option<String>> = redis.hget(&key, fields)?;
                let values: Vec<String> = values.into_iter().map(Option::unwrap_or_default).collect();
                let name = key.strip_prefix(&self.config.namespace).unwrap_or(&key);
                state.insert(name.to_owned(), values.join(" "));
            }
        }
        Ok(state)
    }

    /// What plain code expects of everything sent so far.
    pub(crate) fn expected(&self, end: End) -> Expected {
        let mut expected = Expected::default();
        let log = self.log.lock().unwrap();
        for number in 0..self.partitions {
            let mut partition = Partition::new(self, number);
            for (&(_, offset), sent) in log.range((number, 0)..(number + 1, 0)) {
                partition.read(offset, sent);
            }
            if end == End::Closed {
                partition.close(i64::MAX);
            }
            partition.finish(&mut expected);
        }
        expected
    }

    /// Checks topics and Redis against the expectation. Returns how many records were repeated.
    pub(crate) fn check(&self, end: End) -> anyhow::Result<usize> {
        let expected = self.expected(end);
        let received = self.received()?;
        assert_same("outputs", &expected.outputs, &received.outputs)?;
        assert_same("state", &expected.state, &self.state()?)?;
        Ok(received.repeated)
    }
}

impl Received {
    fn take(&mut self, name: String, record: &Record) -> anyhow::Result<()> {
        ensure!(record.timestamp > BEGIN + 86_400_000, "{name}: stamped with {}, not with now", record.timestamp);
        let content = format!("{} -> {}", record.key.as_deref().unwrap_or_default(), record.value);
        match self.outputs.get(&name) {
            Some(before) => {
                ensure!(*before == content, "{name} was sent twice, differently:\n{before}\n{content}");
                self.repeated += 1;
            }
            None => {
                self.outputs.insert(name, content);
            }
        }
        Ok(())
    }
}

/// One source partition, read tick by tick.
struct Partition<'m> {
    market: &'m Market<'m>,
    number: i32,
    watermark: Option<i64>,
    last: BTreeMap<String, Tick>,
    candles: BTreeMap<(String, String, i64), Candle>,
    counts: [u64; 5],
    outputs: Facts,
}

#[derive(Debug, Clone)]
struct Candle {
    end: i64,
    open: Tick,
    close: Tick,
    high: i64,
    low: i64,
    volume: i64,
    count: u64,
    status: &'static str,
    revision: i64,
}

const TICKS: usize = 0;
const LATE: usize = 1;
const OUT_OF_ORDER: usize = 2;
const NOTIFICATIONS: usize = 3;
const DEAD_LETTERS: usize = 4;

impl<'m> Partition<'m> {
    fn new(market: &'m Market<'m>, number: i32) -> Partition<'m> {
        Partition {
            market,
            number,
            watermark: None,
            last: BTreeMap::new(),
            candles: BTreeMap::new(),
            counts: [0; 5],
            outputs: Facts::new(),
        }
    }

    fn read(&mut self, offset: i64, sent: &Sent) {
        let tick = match sent {
            Sent::Tick(tick) => tick,
            Sent::Bad(key, value) => {
                self.counts[DEAD_LETTERS] += 1;
                self.outputs.insert(format!("dead letter {}/{offset}", self.number), format!("{key} -> {value}"));
                return;
            }
        };
        self.counts[TICKS] += 1;
        self.add_to_candles(offset, tick);
        let previous = self.last.get(&tick.symbol).cloned();
        if previous.as_ref().is_some_and(|previous| tick.ts < previous.ts) {
            self.counts[OUT_OF_ORDER] += 1;
        } else {
            self.fire(offset, tick, previous.map(|previous| previous.price));
            self.last.insert(tick.symbol.clone(), tick.clone());
        }
        let lateness = self.market.config.candles.lateness.as_millis() as i64;
        self.watermark = self.watermark.max(Some(tick.ts - lateness));
        self.close(self.watermark.unwrap_or(i64::MIN));
    }

    fn add_to_candles(&mut self, offset: i64, tick: &Tick) {
        let candles = &self.market.config.candles;
        let keep = candles.keep.as_millis() as i64;
        let mut late_for = Vec::new();
        for interval in &candles.intervals {
            let start = tick.ts.div_euclid(interval.ms()) * interval.ms();
            let end = start + interval.ms();
            let name = (tick.symbol.clone(), interval.to_string(), start);
            let is_late = self.watermark.is_some_and(|watermark| end <= watermark);
            if !is_late {
                self.candles.entry(name).and_modify(|candle| candle.add(tick)).or_insert_with(|| Candle::of(tick, end));
                continue;
            }
            late_for.push(interval.to_string());
            if candles.late == LatePolicy::Revise && self.watermark.is_some_and(|watermark| end > watermark - keep) {
                let candle = self
                    .candles
                    .entry(name.clone())
                    .and_modify(|candle| candle.add(tick))
                    .or_insert_with(|| Candle::of(tick, end));
                (candle.status, candle.revision) = ("revised", offset + 1);
                self.send_candle(&name);
            }
        }
        if late_for.is_empty() {
            return;
        }
        self.counts[LATE] += 1;
        if candles.late == LatePolicy::Divert {
            let name = format!("late {}/{offset} for {}", self.number, late_for.join(" "));
            let value = format!(
                r#"{{"symbol":"{}","price":{},"volume":{},"ts":{}}}"#,
                tick.symbol,
                self.number_of(tick.price),
                self.number_of(tick.volume),
                tick.ts
            );
            self.outputs.insert(name, format!("{} -> {value}", tick.symbol));
        }
    }

    fn fire(&mut self, offset: i64, tick: &Tick, previous: Option<i64>) {
        for rule in self.market.rules.iter().filter(|rule| rule.symbol == tick.symbol) {
            if !rule.fires(previous, tick.price) {
                continue;
            }
            self.counts[NOTIFICATIONS] += 1;
            let (topic, number) = (&self.market.config.kafka.topic, self.number);
            let Rule { symbol, trigger, op, threshold, id: rule } = rule;
            let id = format!("{topic}/{number}/{offset}/{trigger}/{op}/{rule}");
            let previous = previous.map_or_else(|| "null".into(), |previous| self.number_of(previous));
            let (threshold, price) = (self.number_of(*threshold), self.number_of(tick.price));
            let value = format!(
                r#"{{"id":"{id}","rule":"{rule}","symbol":"{symbol}","trigger":"{trigger}","op":"{op}","threshold":{threshold},"price":{price},"previous":{previous},"ts":{},"source":{{"topic":"{topic}","partition":{number},"offset":{offset}}}}}"#,
                tick.ts
            );
            self.outputs.insert(format!("notification {id}"), format!("{symbol} -> {value}"));
        }
    }

    /// Sends every open candle that ends at or below `watermark`.
    fn close(&mut self, watermark: i64) {
        let is_due = |candle: &Candle| candle.status == "open" && candle.end <= watermark;
        let due: Vec<_> = self.candles.iter().filter(|(_, candle)| is_due(candle)).map(|(name, _)| name.clone()).collect();
        for name in due {
            if let Some(candle) = self.candles.get_mut(&name) {
                candle.status = "final";
            }
            self.send_candle(&name);
        }
    }

    fn send_candle(&mut self, name: &(String, String, i64)) {
        let ((symbol, interval, start), candle) = (name, &self.candles[name]);
        let number = |hundredths| self.number_of(hundredths);
        let value = format!(
            r#"{{"symbol":"{symbol}","interval":"{interval}","start":{start},"end":{},"open":{},"high":{},"low":{},"close":{},"volume":{},"count":{},"status":"{}","revision":{}}}"#,
            candle.end,
            number(candle.open.price),
            number(candle.high),
            number(candle.low),
            number(candle.close.price),
            number(candle.volume),
            candle.count,
            candle.status,
            candle.revision
        );
        let name = format!("candle {symbol}:{interval}:{start}:{}", candle.revision);
        self.outputs.insert(name, format!("{symbol} -> {value}"));
    }

    fn number_of(&self, hundredths: i64) -> String {
        match self.market.config.output.numbers {
            Numbers::Number => plain(hundredths),
            Numbers::String => format!("\"{}\"", plain(hundredths)),
        }
    }

    fn finish(self, expected: &mut Expected) {
        let source = format!("{}/{}", self.market.config.kafka.topic, self.number);
        for (symbol, tick) in &self.last {
            let name = format!("last:{}", encoded(symbol));
            expected.state.insert(name, format!("{} {} {source}", plain(tick.price), tick.ts));
        }
        for ((symbol, interval, start), c) in &self.candles {
            let (open, close) = (&c.open, &c.close);
            let prices = [open.price, c.high, c.low, close.price, c.volume].map(plain).join(" ");
            let content = format!("{prices} {} {} {} {} {}", c.count, open.ts, close.ts, c.status, c.revision);
            expected.state.insert(format!("ohlc:{}:{interval}:{start}", encoded(symbol)), content);
        }
        // A partition that nothing was read from has a position, and no counts yet.
        let any = self.counts.iter().any(|count| *count > 0);
        let counts = self.counts.map(|count| if any { count.to_string() } else { String::new() });
        expected.state.insert(format!("source:{source}"), counts.join(" "));
        expected.outputs.extend(self.outputs);
    }
}

impl Candle {
    fn of(tick: &Tick, end: i64) -> Candle {
        Candle {
            end,
            open: tick.clone(),
            close: tick.clone(),
            high: tick.price,
            low: tick.price,
            volume: tick.volume,
            count: 1,
            status: "open",
            revision: 0,
        }
    }

    fn add(&mut self, tick: &Tick) {
        if tick.ts < self.open.ts {
            self.open = tick.clone();
        }
        if tick.ts >= self.close.ts {
            self.close = tick.clone();
        }
        self.high = self.high.max(tick.price);
        self.low = self.low.min(tick.price);
        self.volume += tick.volume;
        self.count += 1;
    }
}

impl Tick {
    fn json(&self) -> String {
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

/// Where every walk starts, in hundredths.
pub(crate) const START_PRICE: i64 = 100_00;

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
        let back = if self.random.random_bool(0.1) { self.random.random_range(0..=self.disorder) } else { 0 };
        let volume = self.random.random_range(0..1_000);
        Some(Tick { symbol, price, volume, ts: self.now - back, partition: None })
    }
}

/// The process in an owner's name, `<host>-<process>-<random>`.
fn process_of(owner: &str) -> Option<u32> {
    owner.rsplit('-').nth(1)?.parse().ok()
}

/// Hundredths as a plain decimal without trailing zeros.
pub(crate) fn plain(hundredths: i64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The form of a symbol in keys, for the symbols of these tests.
fn encoded(symbol: &str) -> String {
    symbol.replace('%', "%25").replace(' ', "%20")
}

/// Fails with the first differences.
pub(crate) fn assert_same(what: &str, expected: &Facts, found: &Facts) -> anyhow::Result<()> {
    let mut differences = Vec::new();
    for (name, content) in expected {
        match found.get(name) {
            None => differences.push(format!("missing: {name}: {content}")),
            Some(other) if other != content => {
                differences.push(format!("{name}:\n    expected {content}\n    found    {other}"));
            }
            Some(_) => {}
        }
    }
    let unexpected = found.iter().filter(|(name, _)| !expected.contains_key(*name));
    differences.extend(unexpected.map(|(name, content)| format!("unexpected: {name}: {content}")));
    let shown = differences.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("\n");
    ensure!(
        differences.is_empty(),
        "{what}: {} differences ({} expected, {} found):\n{shown}",
        differences.len(),
        expected.len(),
        found.len()
    );
    Ok(())
}
