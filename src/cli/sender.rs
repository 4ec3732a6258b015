//! What `produce` and `generate` share: a producer to the source topic that counts what Kafka took.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use crate::config::KafkaConfig;
use crate::kafka::client::{log_line, producer_config};

/// How long to wait for room in a full queue before trying again.
const FULL_QUEUE: Duration = Duration::from_millis(10);

/// How long Kafka may take to acknowledge a record; librdkafka's own 5 minutes are long for somebody who waits.
const TIMEOUT: &str = "message.timeout.ms";
const TIMEOUT_MS: &str = "30000";

/// How long Kafka may take to acknowledge what is queued at the end.
const FLUSH: Duration = Duration::from_mins(1);

/// A producer to the source topic.
pub(super) struct Sender {
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

impl ClientContext for Tally {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        log_line(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "client error");
    }
}

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

impl Sender {
    /// A sender that ends early, between two records, once the process is interrupted.
    pub(super) fn new(kafka: &KafkaConfig) -> anyhow::Result<Sender> {
        let mut config = producer_config(kafka)?;
        if !kafka.producer.contains_key(TIMEOUT) {
            config.set(TIMEOUT, TIMEOUT_MS);
        }
        let producer = config
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
        Ok(Sender { producer, topic: kafka.topic.clone(), stop, sent: 0 })
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdkafka::config::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::Message as _;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::RDKafkaRespErr;

    use super::*;

    const TOPIC: &str = "ticks";
    const PARTITIONS: i32 = 4;

    fn cluster() -> (MockCluster<'static, DefaultProducerContext>, KafkaConfig) {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, PARTITIONS, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        (cluster, KafkaConfig { brokers, topic: TOPIC.into(), ..KafkaConfig::default() })
    }

    /// (partition, key) of the first `count` records of the topic.
    fn read(kafka: &KafkaConfig, count: usize) -> Vec<(i32, Vec<u8>)> {
        let reader: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &kafka.brokers)
            .set("group.id", "reader")
            .set("auto.offset.reset", "earliest")
            .create()
            .unwrap();
        reader.subscribe(&[TOPIC]).unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut found = Vec::new();
        while found.len() < count {
            assert!(Instant::now() < deadline, "only {} records were there", found.len());
            if let Some(record) = reader.poll(Duration::from_millis(100)) {
                let record = record.unwrap();
                found.push((record.partition(), record.key().unwrap().to_vec()));
            }
        }
        found
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_records_of_a_symbol_go_to_the_partition_that_java_would_choose() {
        // Keys with their murmur2 in Java, as librdkafka's own test has them.
        let hashes: [(&str, u32); 3] =
            [("kafka", 0xd067_cf64), ("giberish123456789", 0x8f55_2b0c), ("1234", 0x9fc9_7b14)];
        let (_cluster, kafka) = cluster();
        let mut sender = Sender::new(&kafka).unwrap();
        for (key, _) in [hashes, hashes].concat() {
            sender.send(Some(key.as_bytes()), b"{}").unwrap();
        }
        assert_eq!(sender.finish().unwrap(), 6);
        for (partition, key) in read(&kafka, 6) {
            let (_, hash) = hashes.iter().find(|(known, _)| known.as_bytes() == key).unwrap();
            assert_eq!(partition, (hash & 0x7fff_ffff).cast_signed() % PARTITIONS, "{key:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_record_that_kafka_refuses_is_a_failure() {
        let (cluster, kafka) = cluster();
        cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
        let mut sender = Sender::new(&kafka).unwrap();
        let error = sender.send(None, b"{}").and_then(|()| sender.finish()).unwrap_err();
        assert!(format!("{error:#}").contains(TOPIC), "{error:#}");
    }
}
