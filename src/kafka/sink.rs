//! Outputs, at least once: an idempotent producer, and an answer when all records of a batch are acknowledged.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;

use super::client::{KafkaSetupError, lock, log_line, producer_config};
use crate::config::KafkaConfig;
use crate::failpoint;

/// Pause before a record is offered again to a producer whose queue is full.
pub(super) const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(2);

/// A record to write. Its timestamp is when it is written: the broker deletes by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutRecord {
    /// The topic.
    pub topic: Arc<str>,
    /// The key; decides the partition as the Java client would (murmur2).
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// Headers, in order; a value may be null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// Why records were not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// The same record would be refused again.
    #[error("topic {topic} refuses the record with key {key}: {reason}; {next_step}")]
    Permanent {
        /// The output topic.
        topic: String,
        /// The record's key, readable.
        key: String,
        /// The kind of error.
        code: Option<RDKafkaErrorCode>,
        /// librdkafka's words.
        reason: String,
        /// What a person can do.
        next_step: &'static str,
    },
    /// Not acknowledged; the same record may be written another time.
    #[error(
        "topic {topic} did not acknowledge the record with key {key}: {reason}; sent again as long as it takes"
    )]
    Transient {
        /// The output topic.
        topic: String,
        /// The record's key, readable.
        key: String,
        /// The kind of error.
        code: Option<RDKafkaErrorCode>,
        /// librdkafka's words.
        reason: String,
    },
    /// A transactional producer could not take over from the one before.
    #[error("transactional producer {id} could not start: {reason}; {next_step}")]
    Open {
        /// Its `transactional.id`.
        id: String,
        /// Whether trying again is of no use.
        permanent: bool,
        /// librdkafka's words.
        reason: String,
        /// What a person, or the worker, can do.
        next_step: &'static str,
    },
}

impl SinkError {
    /// Whether trying again is of no use.
    pub fn is_permanent(&self) -> bool {
        match self {
            SinkError::Permanent { .. } => true,
            SinkError::Transient { .. } => false,
            SinkError::Open { permanent, .. } => *permanent,
        }
    }

    /// The records of a producer with a fatal error all fail by the same word; whether trying again is of use, its
    /// cause says.
    fn because(self, code: RDKafkaErrorCode, reason: String) -> SinkError {
        match (self, permanent_next_step(code)) {
            (SinkError::Transient { topic, key, .. }, Some(next_step)) => {
                SinkError::Permanent { topic, key, code: Some(code), reason, next_step }
            }
            (error, _) => error,
        }
    }

    pub(super) fn record(topic: &str, key: Option<&[u8]>, error: &KafkaError) -> SinkError {
        let (topic, key) = (topic.to_owned(), readable(key));
        let (code, reason) = (error.rdkafka_error_code(), error.to_string());
        match code.and_then(permanent_next_step) {
            Some(next_step) => SinkError::Permanent { topic, key, code, reason, next_step },
            None => SinkError::Transient { topic, key, code, reason },
        }
    }
}

/// What to do about an error that does not pass; `None`: it may pass.
pub(super) fn permanent_next_step(code: RDKafkaErrorCode) -> Option<&'static str> {
    use RDKafkaErrorCode as Code;
    match code {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge => Some(
            "shorten the rule's note, or raise max.message.bytes of the topic and \"message.max.bytes\" in \
             [kafka.producer]",
        ),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            Some("create the topic with kafka-topics.sh --create")
        }
        Code::InvalidTopic => Some("correct the topic's name in [output]"),
        Code::TopicAuthorizationFailed => Some("allow this user WRITE on the topic with kafka-acls.sh"),
        Code::ClusterAuthorizationFailed => Some("allow this user WRITE on the output topics with kafka-acls.sh"),
        Code::TransactionalIdAuthorizationFailed => {
            Some("allow this user WRITE and DESCRIBE on the transactional id with kafka-acls.sh")
        }
        Code::GroupAuthorizationFailed => Some("allow this user READ on the group with kafka-acls.sh"),
        Code::InvalidRecord | Code::PolicyViolation | Code::UnsupportedForMessageFormat => {
            Some("read the topic's configuration: it does not take this kind of record")
        }
        Code::InvalidRequiredAcks => Some("read the topic's configuration: it does not take acks=all"),
        _ => None,
    }
}

fn readable(key: Option<&[u8]>) -> String {
    key.map_or_else(|| "(none)".to_owned(), |key| format!("{:?}", String::from_utf8_lossy(key)))
}

/// One producer for all partitions of a worker.
pub struct Sink {
    config: ClientConfig,
    producer: Mutex<Arc<SinkProducer>>,
}

pub(super) type SinkProducer = ThreadedProducer<Deliveries>;

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

impl Sink {
    /// Makes the producer; does not wait for a broker.
    pub fn new(kafka: &KafkaConfig) -> Result<Sink, KafkaSetupError> {
        let config = producer_config(kafka)?;
        let producer = config
            .create_with_context(Deliveries::default())
            .map_err(|error| KafkaSetupError::of("producer", kafka, error))?;
        Ok(Sink { config, producer: Mutex::new(Arc::new(producer)) })
    }

    /// Writes records, in order a key, and returns when all are acknowledged. With a full queue (the broker
    /// away, or slow) it waits. After an error some of the records may have been written.
    pub async fn send(&self, records: Vec<OutRecord>) -> Result<(), SinkError> {
        let producer = Arc::clone(&lock(&self.producer));
        let Err(error) = send_all(&producer, &records).await else { return Ok(()) };
        let Some((code, reason)) = producer.client().fatal_error() else { return Err(error) };
        self.replace(&producer);
        Err(error.because(code, reason))
    }

    /// An idempotent producer with a fatal error takes nothing more.
    fn replace(&self, broken: &Arc<SinkProducer>) {
        let mut current = lock(&self.producer);
        if !Arc::ptr_eq(&current, broken) {
            return; // another batch was first
        }
        match self.config.create_with_context(Deliveries::default()) {
            Ok(producer) => *current = Arc::new(producer),
            Err(error) => tracing::error!(%error, "a new producer could not be made"),
        }
    }
}

async fn send_all(producer: &SinkProducer, records: &[OutRecord]) -> Result<(), SinkError> {
    let (flight, landed) = Flight::take_off();
    for record in records {
        while let Err(error) = enqueue(producer, record, &flight) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(SinkError::record(&record.topic, record.key.as_deref(), &error));
            }
            tokio::time::sleep(QUEUE_FULL_PAUSE).await;
        }
    }
    drop(flight);
    failpoint::pass("outputs_enqueued");
    landed.await.expect("a flight sends its result when it is dropped, and the last acknowledgement drops it")
}

/// Hands one record to the producer, which copies it.
pub(super) fn enqueue(producer: &SinkProducer, record: &OutRecord, flight: &Arc<Flight>) -> Result<(), KafkaError> {
    let mut message: BaseRecord<'_, [u8], [u8], Arc<Flight>> =
        BaseRecord::with_opaque_to(&record.topic, Arc::clone(flight));
    message.key = record.key.as_deref();
    message.payload = record.value.as_deref();
    if !record.headers.is_empty() {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in &record.headers {
            headers = headers.insert(Header { key, value: value.as_ref() });
        }
        message.headers = Some(headers);
    }
    producer.send(message).map_err(|(error, _)| error)
}

/// Records on their way. Each holds a share; the last acknowledgement drops the last one, which is the answer.
pub(super) struct Flight {
    failure: Mutex<Option<SinkError>>,
    landed: Option<oneshot::Sender<Result<(), SinkError>>>,
}

impl Flight {
    pub(super) fn take_off() -> (Arc<Flight>, oneshot::Receiver<Result<(), SinkError>>) {
        let (sender, receiver) = oneshot::channel();
        (Arc::new(Flight { failure: Mutex::new(None), landed: Some(sender) }), receiver)
    }

    /// A permanent failure is told rather than a passing one, else the first.
    fn fail(&self, error: SinkError) {
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|first| error.is_permanent() && !first.is_permanent()) {
            *failure = Some(error);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let failure = lock(&self.failure).take();
        if let Some(landed) = self.landed.take() {
            let _ = landed.send(failure.map_or(Ok(()), Err)); // the sender's task may have been cancelled
        }
    }
}

/// Receives acknowledgements, from the producer's polling thread.
#[derive(Default)]
pub(super) struct Deliveries {
    /// The broker gave no producer id: a transaction before is still being ended. librdkafka asks again after half a
    /// second, whatever it is configured to, and tells of it in its log only.
    pub(super) put_off: AtomicBool,
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        if fac == "GETPID" && message.ends_with(": retrying") {
            self.put_off.store(true, Ordering::Relaxed);
            return log_line(RDKafkaLogLevel::Debug, fac, message);
        }
        log_line(level, fac, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(target: "librdkafka", %error, reason, "producer error");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Arc<Flight>;

    fn delivery(&self, result: &DeliveryResult<'_>, flight: Arc<Flight>) {
        if let Err((error, message)) = result {
            flight.fail(SinkError::record(message.topic(), message.key(), error));
        }
    }
}
