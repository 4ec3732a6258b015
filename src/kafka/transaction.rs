//! Outputs and the source offset in one Kafka transaction: one producer a source partition.
//!
//! Opening a producer with a partition's `transactional.id` fences the one before it, wherever it is, and aborts
//! what it left open. Calls into librdkafka block, so they run on blocking threads; the producer's own thread
//! polls it meanwhile, without which `commit_transaction` waits in steps of 100 ms.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use tokio::sync::oneshot;

use super::client::{lock, producer_config};
use super::committer::offsets_of;
use super::sink::{
    Deliveries, Flight, OutRecord, QUEUE_FULL_PAUSE, SinkError, SinkProducer, enqueue, permanent_next_step,
};
use crate::config::KafkaConfig;
use crate::domain::{Position, SourcePartition};
use crate::failpoint;

/// Also the broker's bound on an open transaction, so beyond it the broker has aborted.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The producer before may have left a transaction that the broker must abort first.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked whether the broker has put a new producer off.
const OPEN_LOOK: Duration = Duration::from_millis(10);
/// Pause before another one is made; doubled up to the longest.
const FIRST_REOPEN: Duration = Duration::from_millis(20);
const LONGEST_REOPEN: Duration = Duration::from_millis(500);
/// librdkafka takes an acknowledged record off its count a moment after it has told us.
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

/// How a transaction ended that was not committed, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Another producer with the same id has started: another worker took the partition over. Drop the sink.
    #[error("transactional producer {id} was fenced: another worker took its partition over")]
    Fenced {
        /// The `transactional.id`.
        id: String,
    },
    /// Not committed, and aborted. The sink takes the next transaction.
    #[error("the transaction of {id} was aborted: {reason}; it is tried again")]
    Aborted {
        /// The `transactional.id`.
        id: String,
        /// What failed.
        reason: String,
    },
    /// Committed or not: drop the sink and take the partition over again.
    #[error("the transaction of {id} has an unknown outcome: {reason}; the partition is taken over again")]
    Unknown {
        /// The `transactional.id`.
        id: String,
        /// What failed.
        reason: String,
    },
    /// Not committed, and would not be another time.
    #[error("the transaction of {id} cannot be committed: {reason}")]
    Permanent {
        /// The `transactional.id`.
        id: String,
        /// What failed, with the next step.
        reason: String,
    },
}

/// The transactional producer of one source partition.
pub struct TransactionalSink {
    id: Arc<str>,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for TransactionalSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionalSink").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TransactionalSink {
    /// Starts the producer of `partition`, which fences its former one. Takes up to 20 s.
    pub async fn open(kafka: &KafkaConfig, partition: &SourcePartition) -> Result<TransactionalSink, SinkError> {
        let id: Arc<str> = format!("{}-{}-{}", kafka.group, partition.topic, partition.partition).into();
        let (kafka, state_id) = (kafka.clone(), Arc::clone(&id));
        let opened = tokio::task::spawn_blocking(move || State::open(&kafka, state_id)).await;
        let state = opened.unwrap_or_else(|error| Err(open_error(&id, false, error.to_string())))?;
        Ok(TransactionalSink { id, state: Arc::new(Mutex::new(state)) })
    }

    /// One transaction: writes the records and commits `position` of `source` for the group.
    pub async fn commit(
        &self,
        records: Vec<OutRecord>,
        source: &SourcePartition,
        position: Position,
        group: ConsumerGroupMetadata,
    ) -> Result<(), TransactionError> {
        let state = Arc::clone(&self.state);
        let offsets = offsets_of(&source.topic, [(source.partition, position)])
            .map_err(|error| TransactionError::Permanent { id: self.id.to_string(), reason: error.to_string() })?;
        let committed =
            tokio::task::spawn_blocking(move || lock(&state).transact(&records, &offsets, &group)).await;
        committed.unwrap_or_else(|error| {
            Err(TransactionError::Unknown { id: self.id.to_string(), reason: error.to_string() })
        })
    }

    /// Aborts what is open, before the partition stops. Waits for a [`commit`](Self::commit) under way.
    pub async fn abort(&self) {
        let state = Arc::clone(&self.state);
        if let Err(error) = tokio::task::spawn_blocking(move || lock(&state).abort_open()).await {
            tracing::warn!(id = %self.id, %error, "aborting the transaction failed; the broker does after 10 s");
        }
    }
}

/// What one blocking call at a time works on.
struct State {
    id: Arc<str>,
    /// Always there until it is dropped.
    producer: Option<SinkProducer>,
    open: bool,
    /// Why the producer must not be used again.
    dead: Option<TransactionError>,
}

/// Why a transaction is given up.
enum Cause {
    Record(SinkError),
    Call(KafkaError),
    /// The offsets were not taken. A record refused meanwhile makes that call fail without saying so; its own
    /// error comes with the records' answer, which is there when the transaction is aborted.
    Offsets(KafkaError, oneshot::Receiver<Result<(), SinkError>>),
}

impl Cause {
    /// The call that failed, if one did.
    fn call(&self) -> Option<&KafkaError> {
        match self {
            Cause::Record(_) => None,
            Cause::Call(error) | Cause::Offsets(error, _) => Some(error),
        }
    }

    fn is_permanent(&self) -> bool {
        match self {
            Cause::Record(error) => error.is_permanent(),
            Cause::Call(error) | Cause::Offsets(error, _) => is_permanent(error),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Record(error) => error.fmt(f),
            Cause::Call(error) | Cause::Offsets(error, _) => error.fmt(f),
        }
    }
}

impl State {
    fn open(kafka: &KafkaConfig, id: Arc<str>) -> Result<State, SinkError> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let mut pause = FIRST_REOPEN;
        let mut state = State { id, producer: None, open: false, dead: None };
        loop {
            let producer = state.producer.insert(transactional_producer(kafka, &state.id)?);
            match init_transactions(producer, deadline) {
                Ok(true) => return Ok(state),
                Ok(false) => {
                    state.drop_producer();
                    thread::sleep(pause);
                    pause = LONGEST_REOPEN.min(pause * 2);
                }
                Err(error) => {
                    return Err(open_error(&state.id, is_permanent(&error), error.to_string()));
                }
            }
        }
    }

    fn producer(&self) -> &SinkProducer {
        self.producer.as_ref().expect("the producer is taken out only when the state is dropped")
    }

    fn transact(
        &mut self,
        records: &[OutRecord],
        offsets: &TopicPartitionList,
        group: &ConsumerGroupMetadata,
    ) -> Result<(), TransactionError> {
        if let Some(dead) = &self.dead {
            return Err(dead.clone());
        }
        let deadline = Instant::now() + TRANSACTION_TIMEOUT;
        self.producer().begin_transaction().map_err(|error| self.give_up(Cause::Call(error)))?;
        self.open = true;
        self.fill(records, offsets, group, deadline).map_err(|cause| self.give_up(cause))?;
        self.end(deadline)
    }

    /// The offsets are sent while the records are on their way.
    fn fill(
        &self,
        records: &[OutRecord],
        offsets: &TopicPartitionList,
        group: &ConsumerGroupMetadata,
        deadline: Instant,
    ) -> Result<(), Cause> {
        let producer = self.producer();
        let (flight, landed) = Flight::take_off();
        for record in records {
            while let Err(error) = enqueue(producer, record, &flight) {
                let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
                if !full || Instant::now() > deadline {
                    let key = record.key.as_deref();
                    return Err(Cause::Record(SinkError::record(&record.topic, key, &error)));
                }
                thread::sleep(QUEUE_FULL_PAUSE);
            }
        }
        drop(flight);
        failpoint::pass("transaction_begun");
        if let Err(error) = retrying(deadline, |left| producer.send_offsets_to_transaction(offsets, group, left)) {
            return Err(Cause::Offsets(error, landed));
        }
        // Bounded: a record's timeout is that of the transaction.
        landed.blocking_recv().unwrap_or(Ok(())).map_err(Cause::Record)?;
        while producer.in_flight_count() > 0 && Instant::now() < deadline {
            thread::sleep(SETTLE_PAUSE);
        }
        failpoint::pass("transaction_filled");
        Ok(())
    }

    fn end(&mut self, deadline: Instant) -> Result<(), TransactionError> {
        match retrying(deadline, |left| self.producer().commit_transaction(left)) {
            Ok(()) => {
                self.open = false;
                Ok(())
            }
            Err(error) if not_committed(&error) => Err(self.give_up(Cause::Call(error))),
            Err(error) => Err(self.die(error.to_string())),
        }
    }

    /// Aborts. The outcome is known if that succeeds.
    fn give_up(&mut self, cause: Cause) -> TransactionError {
        if is_fatal(self.producer(), &cause) {
            return self.die(cause.to_string());
        }
        let aborted = self.abort();
        let cause = match cause {
            // Bounded: an aborted transaction has no record on its way, and a record's timeout is that of the
            // transaction.
            Cause::Offsets(error, landed) => match landed.blocking_recv() {
                Ok(Err(refused)) if refused.is_permanent() => Cause::Record(refused),
                _ => Cause::Call(error),
            },
            cause => cause,
        };
        let (id, reason) = (self.id.to_string(), cause.to_string());
        match aborted {
            _ if cause.is_permanent() => TransactionError::Permanent { id, reason },
            Ok(()) => TransactionError::Aborted { id, reason },
            Err(died) => died,
        }
    }

    /// After a failed abort the producer is dead.
    fn abort(&mut self) -> Result<(), TransactionError> {
        if !self.open {
            return Ok(());
        }
        let deadline = Instant::now() + TRANSACTION_TIMEOUT;
        match retrying(deadline, |left| self.producer().abort_transaction(left)) {
            Ok(()) => {
                self.open = false;
                Ok(())
            }
            Err(error) => Err(self.die(format!("aborting failed: {error}"))),
        }
    }

    fn abort_open(&mut self) {
        if self.dead.is_none()
            && let Err(error) = self.abort()
        {
            tracing::warn!(%error, "the transaction is left to the broker, which aborts it after 10 s");
        }
    }

    /// The producer is never used again.
    fn die(&mut self, reason: String) -> TransactionError {
        let id = self.id.to_string();
        let fenced = self.producer().client().fatal_error().is_some_and(|(code, _)| is_fenced(code));
        let error = if fenced { TransactionError::Fenced { id } } else { TransactionError::Unknown { id, reason } };
        self.dead = Some(error.clone());
        error
    }

    /// Joining the producer's thread and flushing takes a while, and this may be an async thread.
    fn drop_producer(&mut self) {
        let producer = self.producer.take();
        let dropped = thread::Builder::new().name("kafka-drop".into()).spawn(move || drop(producer));
        if let Err(error) = dropped {
            tracing::warn!(id = %self.id, %error, "no thread to drop the producer on; dropped in place");
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.drop_producer();
    }
}

/// Gets the producer its id. False: the broker put it off, and another producer is the way to ask again soon.
fn init_transactions(producer: &SinkProducer, deadline: Instant) -> Result<bool, KafkaError> {
    loop {
        match producer.init_transactions(OPEN_LOOK) {
            Ok(()) => return Ok(true),
            Err(error) => {
                let waiting = error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut);
                if !waiting || Instant::now() > deadline {
                    return Err(error);
                }
            }
        }
        if producer.context().put_off.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
}

fn transactional_producer(kafka: &KafkaConfig, id: &str) -> Result<SinkProducer, SinkError> {
    let refused = |reason: String| open_error(id, true, reason);
    let mut config = producer_config(kafka).map_err(|error| refused(error.to_string()))?;
    config.set("transactional.id", id);
    config.set("transaction.timeout.ms", TRANSACTION_TIMEOUT.as_millis().to_string());
    // The broker answers "concurrent transactions" for some ms after each commit; with the default 100 ms that
    // pause is in every transaction.
    if config.get("retry.backoff.ms").is_none() {
        config.set("retry.backoff.ms", "1");
    }
    config.create_with_context(Deliveries::default()).map_err(|error| refused(error.to_string()))
}

fn open_error(id: &str, permanent: bool, reason: String) -> SinkError {
    let next_step = if permanent {
        "check [kafka.producer] and this user's rights on the transactional id"
    } else {
        "tried again with back-off; check that the transaction coordinator's broker is up"
    };
    SinkError::Open { id: id.to_owned(), permanent, reason, next_step }
}

/// Calls again while librdkafka says that the same call may succeed.
fn retrying(deadline: Instant, mut call: impl FnMut(Duration) -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match call(left) {
            Err(KafkaError::Transaction(error)) if error.is_retriable() && !left.is_zero() => {}
            result => return result,
        }
    }
}

/// Whether a failed commit certainly did not take place: it was not asked for, or the transaction can only be
/// aborted.
fn not_committed(error: &KafkaError) -> bool {
    match error {
        KafkaError::Flush(_) => true,
        KafkaError::Transaction(error) => error.txn_requires_abort(),
        _ => false,
    }
}

/// Whether the same call would fail again.
fn is_permanent(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| permanent_next_step(code).is_some())
}

fn is_fatal(producer: &SinkProducer, cause: &Cause) -> bool {
    matches!(cause.call(), Some(KafkaError::Transaction(error)) if error.is_fatal())
        || producer.client().fatal_error().is_some()
}

fn is_fenced(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced | RDKafkaErrorCode::InvalidProducerEpoch
    )
}
