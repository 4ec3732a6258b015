//! The ticks of a run: skewed over symbols, partly out of order, late, in the future or broken, with bursts and quiet
//! partitions. What is in the topic afterwards is read from the topic; nothing is remembered here.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

use crate::common::facts::plain;
use crate::common::kafka::{Message, produce_transaction};
use crate::common::now;
use crate::plan::{Plan, Time, rng};

/// Where the event time of [`Time::Log`] begins, ms: a whole minute in 2023.
pub(crate) const BEGIN: i64 = 1_700_000_040_000;

/// How often ticks are written.
const BEAT: Duration = Duration::from_millis(20);

/// Where prices start, in hundredths.
pub(crate) const START_PRICE: i64 = 10_000;

/// How long the producer tries to write a record while the broker is away.
const PATIENCE: Duration = Duration::from_mins(3);

/// Names that keys and JSON have to carry as they are.
const ODD_NAMES: [&str; 6] = ["BRK.B", "BTC/USDT:USDT", "ES=F", "{BTC}", "币安人生USDT", "A B%"];

/// The name of a symbol, by its number.
pub(crate) fn symbol(number: usize) -> String {
    ODD_NAMES.get(number).map_or_else(|| format!("SYM-{number}"), |name| (*name).to_owned())
}

/// A symbol stays in its partition; those of an added partition are new.
pub(crate) fn symbols_of(plan: &Plan, partitions: i32) -> Vec<(String, i32)> {
    let first = (0..plan.symbols).map(|number| (symbol(number), number as i32 % plan.partitions));
    let added = (plan.partitions..partitions)
        .flat_map(|partition| (0..2).map(move |number| (format!("NEW-{partition}-{number}"), partition)));
    first.chain(added).collect()
}

/// Writes ticks to `topic` until `stop`, and then waits until all are written.
pub(crate) fn run(
    plan: &Plan,
    brokers: &str,
    topic: &str,
    partitions: &AtomicI32,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut traffic = Traffic::new(plan, brokers, topic)?;
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + BEAT;
        traffic.set_partitions(partitions.load(Ordering::Relaxed));
        traffic.beat();
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    traffic.last_ticks();
    traffic.producer.flush(PATIENCE)?;
    Ok(())
}

/// The message of a tick so late in the day that every window before it closes.
pub(crate) fn closing_tick(partition: i32) -> Message {
    let ts = BEGIN + 86_400_000;
    let symbol = format!("CLOSE-{partition}");
    let value = format!(r#"{{"symbol":"{symbol}","price":1,"volume":1,"ts":{ts}}}"#);
    Message { key: Some(symbol), value, partition: Some(partition), ..Message::default() }
}

struct Traffic<'a> {
    plan: &'a Plan,
    topic: &'a str,
    brokers: &'a str,
    producer: ThreadedProducer<DefaultProducerContext>,
    runtime: tokio::runtime::Runtime,
    rng: StdRng,
    symbols: Vec<Symbol>,
    /// By partition.
    feeds: Vec<Feed>,
    started: Instant,
    transactions: u32,
}

/// What brings a partition's ticks.
struct Feed {
    /// Nothing comes before.
    quiet_until: Instant,
    /// Ticks that came into being meanwhile arrive afterwards, as of a feed that was cut off; else there are none.
    keeps: bool,
    kept: Vec<Message>,
}

struct Symbol {
    name: String,
    partition: i32,
    /// In hundredths.
    price: i64,
}

impl<'a> Traffic<'a> {
    fn new(plan: &'a Plan, brokers: &'a str, topic: &'a str) -> anyhow::Result<Traffic<'a>> {
        Ok(Traffic {
            plan,
            topic,
            brokers,
            producer: producer(brokers)?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            rng: rng(plan.seed, 2),
            symbols: Vec::new(),
            feeds: Vec::new(),
            started: Instant::now(),
            transactions: 0,
        })
    }

    fn set_partitions(&mut self, partitions: i32) {
        if self.feeds.len() < partitions as usize {
            let quiet_until = self.started;
            self.feeds.resize_with(partitions as usize, || Feed { quiet_until, keeps: false, kept: Vec::new() });
            let known = self.symbols.len();
            let new = symbols_of(self.plan, partitions).into_iter().skip(known);
            self.symbols.extend(new.map(|(name, partition)| Symbol { name, partition, price: START_PRICE }));
        }
    }

    /// The ticks of one beat.
    fn beat(&mut self) {
        if self.rng.random_bool(0.01) {
            let number = self.rng.random_range(0..self.feeds.len());
            let quiet = Duration::from_millis(self.rng.random_range(300..3_000));
            let feed = &mut self.feeds[number];
            (feed.quiet_until, feed.keeps) = (Instant::now() + quiet, self.rng.random_bool(0.5));
        }
        let usual = f64::from(self.plan.rate) * BEAT.as_secs_f64();
        let burst = if self.rng.random_bool(0.02) { 20.0 } else { 1.0 };
        let count = (usual * burst * self.rng.random_range(0.0..2.0)).round() as usize;
        let mut messages: Vec<Message> = Vec::new();
        for feed in self.feeds.iter_mut().filter(|feed| feed.quiet_until <= Instant::now()) {
            messages.append(&mut feed.kept);
        }
        messages.extend((0..count).filter_map(|_| self.message()));
        if self.plan.transactions && self.rng.random_bool(0.05) {
            self.write_transaction(messages);
        } else {
            for message in &messages {
                self.write(message);
            }
        }
    }

    /// One good tick to each partition, so that no topic ends with records that readers do not see.
    fn last_ticks(&mut self) {
        for partition in 0..self.feeds.len() as i32 {
            let number = self.symbols.iter().position(|symbol| symbol.partition == partition);
            if let Some(number) = number {
                let ts = self.now();
                let message = self.tick(number, ts);
                self.write(&message);
            }
        }
    }

    fn message(&mut self) -> Option<Message> {
        // Most ticks are of few symbols.
        let skew = self.rng.random_range(0.0..1.0_f64).powi(3);
        let number = ((self.symbols.len() as f64) * skew) as usize;
        let message = self.any_message(number);
        let feed = &mut self.feeds[self.symbols[number].partition as usize];
        if feed.quiet_until <= Instant::now() {
            return Some(message);
        }
        if feed.keeps {
            feed.kept.push(message);
        }
        None
    }

    fn any_message(&mut self, number: usize) -> Message {
        if self.rng.random_bool(0.005) {
            return self.broken(number);
        }
        let ts = match self.rng.random_range(0..1000) {
            0..3 => now() + 3_600_000, // no reference time is near
            3..83 => self.now() - self.rng.random_range(0..=self.reach(1)),
            83..113 => self.now() - self.rng.random_range(0..=self.reach(4)),
            113..118 => self.now() - self.rng.random_range(0..=self.reach(100)),
            118..168 => self.now() / 100 * 100, // on the edge of windows, and equal times
            _ => self.now(),
        };
        self.tick(number, ts)
    }

    /// Event time now, ms.
    fn now(&self) -> i64 {
        match self.plan.time {
            Time::Log(speed) => BEGIN + self.started.elapsed().as_millis() as i64 * i64::from(speed),
            Time::Clock => now(),
        }
    }

    /// So many times the lateness and a second, ms.
    fn reach(&self, times: i64) -> i64 {
        times * (self.plan.settings.lateness.as_millis() as i64 + 300)
    }

    fn tick(&mut self, number: usize, ts: i64) -> Message {
        let (step, volume) = (self.rng.random_range(-150..=150), self.rng.random_range(0..1_000));
        let quoted = self.rng.random_bool(0.1);
        let symbol = &mut self.symbols[number];
        symbol.price = (symbol.price + step).max(1);
        let price = plain(symbol.price);
        let price = if quoted { format!("\"{price}\"") } else { price };
        let value =
            format!(r#"{{"symbol":"{}","price":{price},"volume":{},"ts":{ts}}}"#, symbol.name, plain(volume));
        message(symbol, value)
    }

    fn broken(&mut self, number: usize) -> Message {
        let (ts, symbol) = (self.now(), &self.symbols[number]);
        let name = &symbol.name;
        let values = [
            format!(r#"{{"symbol":"{name}","price":1,"volume":1,"ts":"#),
            format!(r#"{{"symbol":"{name}","price":"NaN","volume":1,"ts":{ts}}}"#),
            format!(r#"{{"symbol":"{name}","price":0,"volume":1,"ts":{ts}}}"#),
            format!(r#"{{"symbol":"{name}","price":1,"volume":-1,"ts":{ts}}}"#),
            format!(r#"{{"symbol":"{name}","price":1,"volume":1}}"#),
            format!(r#"{{"symbol":"{name}","price":1,"volume":1,"ts":{ts}000}}"#),
            format!(r#"{{"symbol":"","price":1,"volume":1,"ts":{ts}}}"#),
            "no tick at all".to_owned(),
            String::new(),
        ];
        message(symbol, values.choose(&mut self.rng).expect("not empty").clone())
    }

    fn write(&self, message: &Message) {
        loop {
            let mut record = BaseRecord::<str, str>::to(self.topic).payload(&message.value);
            record.key = message.key.as_deref();
            record.partition = message.partition;
            match self.producer.send(record) {
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => thread::sleep(BEAT),
                // What was not written is not in the topic, and that is all that counts.
                Ok(()) | Err(_) => return,
            }
        }
    }

    /// Another program's transaction: readers of committed records do not see past it while it is open.
    fn write_transaction(&mut self, messages: Vec<Message>) {
        self.transactions += 1;
        let id = format!("upstream-{}-{}", self.topic, self.transactions % 3);
        let commit = self.rng.random_bool(0.6);
        let written = produce_transaction(self.brokers, &id, self.topic, messages, commit);
        // With the broker away it fails, and the broker aborts it.
        let _ = self.runtime.block_on(written);
    }
}

fn message(symbol: &Symbol, value: String) -> Message {
    Message { key: Some(symbol.name.clone()), value, partition: Some(symbol.partition), ..Message::default() }
}

fn producer(brokers: &str) -> anyhow::Result<ThreadedProducer<DefaultProducerContext>> {
    Ok(ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("linger.ms", "2")
        .set("message.timeout.ms", PATIENCE.as_millis().to_string())
        .set("reconnect.backoff.max.ms", "300")
        .create()?)
}
