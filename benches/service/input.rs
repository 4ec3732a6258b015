//! What every contender reads: JSON ticks from a seed, preloaded, and the rules on them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use crate::clients::end_of;
use crate::expected::{Expected, Oracle};
use crate::lab::Lab;

/// Event time of the first tick, ms: in the past, so that no clock has a say.
const BEGIN: i64 = 1_700_000_000_000;
/// The lowest price, in hundredths.
const FLOOR: i64 = 10_000;
/// Prices of a symbol walk within so many hundredths above [`FLOOR`], by at most [`STEP`] a tick. With ten thresholds
/// in this band, one tick in a hundred crosses one in its rule's direction.
const BAND: i64 = 1_364;
const STEP: i64 = 5;
/// Rules of a symbol that fire now and then.
const RULES: u32 = 10;
/// A level rule matches this many of the band's prices; the two that do make one tick in a hundred fire.
const LEVEL_PRICES: i64 = 7;
/// The last tick of each partition comes so much later, ms: every window before it closes.
const AFTER_ALL: i64 = 3_600_000;
/// How long the broker may take over everything that is queued at the end.
const FLUSH: Duration = Duration::from_mins(2);

/// Decides an input down to the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) ticks: u64,
    pub(crate) symbols: u32,
    /// Of all symbols, in a second of event time.
    pub(crate) a_second: u64,
    pub(crate) partitions: i32,
    /// Percent of the ticks that are of one symbol; `None`: all have the same share.
    pub(crate) hot: Option<u32>,
    pub(crate) trigger: Trigger,
    /// Rules on each symbol besides those that fire: out of its prices' reach.
    pub(crate) far_rules: u32,
    pub(crate) intervals: &'static [&'static str],
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    Edge,
    Level,
}

impl Trigger {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Trigger::Edge => "edge",
            Trigger::Level => "level",
        }
    }
}

/// A rule; the same on every symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) trigger: Trigger,
    pub(crate) op: &'static str,
    /// In hundredths.
    pub(crate) threshold: i64,
}

/// One trade; price in hundredths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tick {
    pub(crate) symbol: u32,
    pub(crate) price: i64,
    pub(crate) volume: u64,
    pub(crate) ts: i64,
}

/// An input on the broker, and what has to come of it.
pub(crate) struct Input {
    pub(crate) spec: Spec,
    pub(crate) topic: String,
    /// Records in all partitions.
    pub(crate) records: u64,
    pub(crate) expected: Expected,
}

impl Spec {
    /// The rules on every symbol.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let near = (0..RULES).map(|number| match self.trigger {
            Trigger::Edge => self.edge_rule(number),
            Trigger::Level => self.level_rule(number),
        });
        near.chain((0..self.far_rules).map(|number| self.far_rule(number))).collect()
    }

    fn edge_rule(&self, number: u32) -> Rule {
        let op = [">=", "<=", ">", "<"][number as usize % 4];
        let threshold = FLOOR + BAND * (2 * i64::from(number) + 1) / (2 * i64::from(RULES));
        Rule { id: format!("r{number}"), trigger: Trigger::Edge, op, threshold }
    }

    /// The first two match the highest and the lowest prices, the others none.
    fn level_rule(&self, number: u32) -> Rule {
        let beyond = i64::from(number / 2) * 100;
        let (op, threshold) = if number % 2 == 0 {
            (">=", FLOOR + BAND - LEVEL_PRICES + beyond)
        } else {
            ("<=", FLOOR + LEVEL_PRICES - 1 - beyond)
        };
        Rule { id: format!("r{number}"), trigger: Trigger::Level, op, threshold }
    }

    /// Half of them above all prices, half below.
    fn far_rule(&self, number: u32) -> Rule {
        let step = i64::from(number / 2);
        let (op, threshold) =
            if number % 2 == 0 { (">=", FLOOR + BAND + 1_000 + step) } else { ("<=", 1 + step % (FLOOR - 1_000)) };
        Rule { id: format!("f{number}"), trigger: self.trigger, op, threshold }
    }

    /// The ticks in the order in which they are sent, without the last of each partition.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = Tick> {
        let Spec { ticks, symbols, a_second, hot, .. } = *self;
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut prices: Vec<i64> = (0..symbols).map(|_| random.random_range(0..BAND)).collect();
        (0..ticks).map(move |number| {
            let symbol = match hot {
                Some(percent) if random.random_range(0..100) < percent => 0,
                _ => random.random_range(0..symbols),
            };
            let price = &mut prices[symbol as usize];
            let next = (*price + random.random_range(-STEP..=STEP)).abs();
            *price = next.min(2 * (BAND - 1) - next); // bounces off both ends
            let ts = BEGIN + (number * 1_000 / a_second) as i64;
            Tick { symbol, price: FLOOR + *price, volume: random.random_range(1..=1_000), ts }
        })
    }

    /// Makes the topic, sends everything, and works out what has to come of it.
    pub(crate) fn load(self, lab: &Lab) -> anyhow::Result<Input> {
        let topic = lab.source_topic(self.partitions)?;
        let mut loader = Loader::new(lab.brokers(), &topic, self.partitions)?;
        let mut oracle = Oracle::new(&self);
        let names: Vec<(String, i32)> = (0..self.symbols)
            .map(|symbol| symbol_name(symbol))
            .map(|name| (name.clone(), partition_of(&name, self.partitions)))
            .collect();
        let mut last = BEGIN;
        for tick in self.ticks() {
            let (name, partition) = &names[tick.symbol as usize];
            let offset = loader.send(name, *partition, tick.price, tick.volume, tick.ts)?;
            oracle.take(tick, *partition, offset);
            last = tick.ts;
        }
        for partition in 0..self.partitions {
            loader.send(&end_name(partition, self.partitions), partition, FLOOR, 1, last + AFTER_ALL)?;
        }
        loader.finish()?;
        let records = self.ticks + self.partitions as u64;
        Ok(Input { spec: self, topic, records, expected: oracle.finish() })
    }
}

/// `S00042`
pub(crate) fn symbol_name(symbol: u32) -> String {
    format!("S{symbol:05}")
}

/// The number in a symbol's name; `None` for the symbols that only end a partition.
pub(crate) fn symbol_number(name: &str) -> Option<u32> {
    name.strip_prefix('S')?.parse().ok()
}

/// A symbol of its own on this partition.
fn end_name(partition: i32, partitions: i32) -> String {
    (0..)
        .map(|number: u32| format!("END-{number}"))
        .find(|name| partition_of(name, partitions) == partition)
        .expect("every partition is some name's")
}

/// Where a key's records are: murmur2, as the Java client and librdkafka's `murmur2` have it.
fn partition_of(key: &str, partitions: i32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let bytes = key.as_bytes();
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        let word = u32::from_le_bytes(word.try_into().expect("a chunk has four bytes")).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, byte| (tail << 8) | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^= hash >> 15;
    (hash & 0x7fff_ffff).cast_signed() % partitions
}

/// Hundredths as plain decimal text.
pub(crate) fn decimal(hundredths: i64) -> String {
    format!("{}{}.{:02}", if hundredths < 0 { "-" } else { "" }, hundredths.abs() / 100, hundredths.abs() % 100)
}

/// Sends records, each to the partition of its key, and counts them there: what is counted is the offset.
struct Loader<'a> {
    producer: ThreadedProducer<Tally>,
    brokers: &'a str,
    topic: &'a str,
    next: Vec<i64>,
    value: String,
}

#[derive(Default)]
struct Tally {
    refused: AtomicU64,
}

impl ClientContext for Tally {}

impl ProducerContext for Tally {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> Loader<'a> {
    fn new(brokers: &'a str, topic: &'a str, partitions: i32) -> anyhow::Result<Loader<'a>> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("enable.idempotence", "true")
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "500000")
            .create_with_context::<_, ThreadedProducer<_, NoCustomPartitioner>>(Tally::default())?;
        Ok(Loader { producer, brokers, topic, next: vec![0; partitions as usize], value: String::new() })
    }

    /// Returns the record's offset.
    fn send(&mut self, symbol: &str, partition: i32, price: i64, volume: u64, ts: i64) -> anyhow::Result<i64> {
        self.value.clear();
        let price = decimal(price);
        write!(self.value, r#"{{"symbol":"{symbol}","price":{price},"volume":{volume},"ts":{ts}}}"#)?;
        let mut record = BaseRecord::to(self.topic).key(symbol).payload(self.value.as_str()).partition(partition);
        while let Err((error, refused)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(error).with_context(|| format!("send to {}", self.topic));
            }
            std::thread::sleep(Duration::from_millis(5));
            record = refused;
        }
        let next = &mut self.next[partition as usize];
        *next += 1;
        Ok(*next - 1)
    }

    /// Waits for the broker, and compares its end offsets with what was counted.
    fn finish(self) -> anyhow::Result<()> {
        self.producer.flush(FLUSH)?;
        let refused = self.producer.context().refused.load(Ordering::Relaxed);
        ensure!(refused == 0, "Kafka refused {refused} records of {}", self.topic);
        let asking: BaseConsumer = ClientConfig::new().set("bootstrap.servers", self.brokers).create()?;
        for (partition, next) in self.next.iter().enumerate() {
            let end = end_of(&asking, self.topic, partition as i32)?;
            if end != *next {
                bail!("{}/{partition} ends at {end}, {next} records were sent", self.topic);
            }
        }
        Ok(())
    }
}
