//! What every contender reads: ticks preloaded on the broker, and what has to come of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use crate::clients::end_of;
use crate::expected::{Expected, Oracle};
use crate::lab::Lab;
use crate::market::{BEGIN, FLOOR, Spec, Tick, symbol_name};

/// The last tick of each partition comes so much later, ms: every window before it closes.
const AFTER_ALL: i64 = 3_600_000;
/// How long the broker may take over everything that is queued at the end.
const FLUSH: Duration = Duration::from_mins(2);

/// An input on the broker, and what has to come of it.
pub(crate) struct Input {
    pub(crate) spec: Spec,
    pub(crate) topic: String,
    /// Records in all partitions.
    pub(crate) records: u64,
    pub(crate) expected: Expected,
}

impl Input {
    /// Makes the topic, sends everything, and works out what has to come of it.
    pub(crate) fn load(spec: Spec, lab: &Lab) -> anyhow::Result<Input> {
        let topic = lab.source_topic(spec.partitions)?;
        let mut loader = Loader::new(lab.brokers(), &topic, spec.partitions)?;
        let mut oracle = Oracle::new(&spec);
        let placed = |name: String| (partition_of(&name, spec.partitions), name);
        let symbols: Vec<(i32, String)> = (0..spec.symbols).map(symbol_name).map(placed).collect();
        let mut last = BEGIN;
        for tick in spec.ticks() {
            let (partition, name) = &symbols[tick.symbol as usize];
            let offset = loader.send(name, *partition, &tick)?;
            oracle.take(tick, *partition, offset);
            last = tick.ts;
        }
        let end = Tick { symbol: 0, price: FLOOR, volume: 1, ts: last + AFTER_ALL };
        for partition in 0..spec.partitions {
            loader.send(&end_name(partition, spec.partitions), partition, &end)?;
        }
        loader.finish()?;
        let records = spec.ticks + spec.partitions as u64;
        Ok(Input { spec, topic, records, expected: oracle.finish() })
    }
}

/// A symbol of its own on this partition.
fn end_name(partition: i32, partitions: i32) -> String {
    (0..u32::MAX)
        .map(|number| format!("END-{number}"))
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

/// Sends records, which the client places by their keys, and counts them by partition: what is counted is the offset,
/// and the broker's end offsets say whether all of them are where they were counted.
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
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "500000")
            .create_with_context::<_, ThreadedProducer<_, NoCustomPartitioner>>(Tally::default())?;
        Ok(Loader { producer, brokers, topic, next: vec![0; partitions as usize], value: String::new() })
    }

    /// Returns the record's offset in `partition`, which is the key's.
    fn send(&mut self, symbol: &str, partition: i32, tick: &Tick) -> anyhow::Result<i64> {
        self.value.clear();
        tick.write_json(symbol, &mut self.value);
        let mut record = BaseRecord::to(self.topic).key(symbol).payload(self.value.as_str());
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
