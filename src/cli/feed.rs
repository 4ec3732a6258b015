//! What `produce` and `generate` share: a producer to the source topic that counts what Kafka took.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use crate::config::KafkaConfig;

/// How long to wait for room in a full queue before trying again.
const FULL_QUEUE: Duration = Duration::from_millis(10);

/// How long Kafka may take to acknowledge what is queued at the end.
const FLUSH: Duration = Duration::from_secs(60);

/// A producer to the source topic.
pub(super) struct Feed {
    producer: ThreadedProducer<Tally>,
    topic: String,
    stop: Arc<AtomicBool>,
    sent: u64,
}

/// What became of the records, counted where Kafka tells of it.
#[derive(Default)]
struct Tally {
    acknowledged: AtomicU64,
    failure: OnceLock<KafkaError>,
}

impl ClientContext for Tally {}

impl ProducerContext for Tally {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, _)) => {
                self.failure.get_or_init(|| error.clone());
            }
        }
    }
}

/// The settings of a feed: the Java clients' partitioner, so that a symbol stays in its partition whoever sends it.
pub(super) fn client_config(kafka: &KafkaConfig) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("linger.ms", "5").set("message.timeout.ms", "30000");
    for (name, value) in &kafka.producer {
        config.set(name, &value.0);
    }
    config.set("bootstrap.servers", &kafka.brokers).set("partitioner", "murmur2_random");
    config
}

impl Feed {
    /// A feed that ends early, between two records, once the process is interrupted.
    pub(super) fn new(kafka: &KafkaConfig) -> anyhow::Result<Feed> {
        let producer = client_config(kafka)
            .create_with_context::<_, ThreadedProducer<Tally, NoCustomPartitioner>>(Tally::default())
            .context("cannot make a Kafka producer; check [kafka.producer]")?;
        let stop = Arc::new(AtomicBool::new(false));
        tokio::spawn({
            let stop = Arc::clone(&stop);
            async move {
                if tokio::signal::ctrl_c().await.is_ok() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
        Ok(Feed { producer, topic: kafka.topic.clone(), stop, sent: 0 })
    }

    /// Whether to send no more.
    pub(super) fn is_interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records handed over so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Queues a record; waits while the queue is full. Fails once Kafka has refused any.
    pub(super) fn send(&mut self, key: Option<&[u8]>, value: &[u8]) -> anyhow::Result<()> {
        self.check()?;
        let mut record = BaseRecord::<[u8], [u8]>::to(&self.topic).payload(value);
        record.key = key;
        while let Err((error, refused)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(error).with_context(|| format!("cannot send to topic {}", self.topic));
            }
            self.check()?;
            self.producer.poll(FULL_QUEUE);
            record = refused;
        }
        self.sent += 1;
        Ok(())
    }

    /// Waits until Kafka has acknowledged everything; returns how many records that are.
    pub(super) fn finish(self) -> anyhow::Result<u64> {
        let flushed = self.producer.flush(FLUSH);
        self.check()?;
        flushed.with_context(|| format!("Kafka did not acknowledge all records of topic {}", self.topic))?;
        let acknowledged = self.producer.context().acknowledged.load(Ordering::Relaxed);
        if acknowledged < self.sent {
            bail!("{} of {} records were not acknowledged by Kafka", self.sent - acknowledged, self.sent);
        }
        Ok(acknowledged)
    }

    fn check(&self) -> anyhow::Result<()> {
        match self.producer.context().failure.get() {
            Some(error) => Err(error.clone()).with_context(|| {
                format!("Kafka did not take a record for topic {}; check [kafka] brokers and topic", self.topic)
            }),
            None => Ok(()),
        }
    }
}
