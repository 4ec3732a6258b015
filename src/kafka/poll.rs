//! The thread that polls the consumer: records to readers, rebalances to events, positioning between polls.
//!
//! It never waits for work, with one exception: a revocation waits, up to a deadline, until what is in flight is
//! committed, because the group hands the partitions on as soon as the callback returns.
//!
//! # Positioning
//!
//! Assigned partitions start paused. [`Command::ReadFrom`] seeks and resumes. librdkafka tags every queued record
//! with its partition's version and a seek raises it, so after a seek that was waited for, no record read before
//! it comes out of the queue. A seek is refused (erroneous state) where fetching has not started yet, soon over,
//! and where it ended because the position was out of range: there the partition is taken out of the assignment
//! and put back, which starts it anew. That is not done always, because librdkafka would count it as the answer
//! to a revocation that waits in the queue at that moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Timestamp, TopicPartitionList};
use tokio::sync::{mpsc, oneshot};

use super::client::{lock, log_line};
use super::reader::{Feed, Feeder, Reader};
use super::source::{Done, SourceError, SourceEvent};
use crate::domain::Offset;
use crate::domain::record::Headers;
use crate::input::{ChunkBuilder, Decoder, RawRecord};

/// Bounds how long a command waits while there is nothing to read.
const POLL_TIMEOUT: Duration = Duration::from_millis(10);
/// The same while a positioning is on its way.
const POLL_TIMEOUT_BUSY: Duration = Duration::from_millis(1);
/// Records taken from the queue before they are handed on.
const DRAIN: usize = 4096;
/// Polls before `is_assigned` is answered. A rebalance event is behind nothing but records that are void by then
/// and go in one poll; each log line and statistics event takes one.
const SETTLE: usize = 16;
const SEEK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long fetching may take to start before the partition is put in anew.
const START_PATIENCE: Duration = Duration::from_millis(500);
/// How long a positioning may take in all.
const POSITION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request that still uses the consumer may hold up leaving the group.
const LEAVE_PATIENCE: Duration = Duration::from_secs(20);

/// The group member; everything it shares between threads is in its context.
pub(super) type SourceConsumer = BaseConsumer<Context>;

/// What the poll thread is asked.
#[derive(Debug)]
pub(super) enum Command {
    ReadFrom { partition: i32, offset: Offset, reply: oneshot::Sender<Result<Reader, SourceError>> },
    IsAssigned { partition: i32, reply: oneshot::Sender<bool> },
    HandOver { revocation: u64 },
    Stop,
}

/// The assignment.
#[derive(Default)]
pub(super) struct Membership(Mutex<BTreeMap<i32, Partition>>);

#[derive(Default)]
struct Partition {
    reading: Option<Reading>,
    /// Its revocation has begun: commits go through, nothing else.
    leaving: bool,
    /// Fetching ended because the position was out of range.
    stuck: bool,
}

/// A partition on its way to a reader.
struct Reading {
    /// Next offset to read.
    next: Offset,
    builder: ChunkBuilder,
    feeder: Feeder,
    paused: bool,
}

impl Membership {
    /// Whether a commit is still this consumer's to make: until the partition is handed over.
    pub(super) fn may_commit(&self, partition: i32) -> bool {
        lock(&self.0).contains_key(&partition)
    }

    fn stays(&self, partition: i32) -> bool {
        lock(&self.0).get(&partition).is_some_and(|p| !p.leaving)
    }
}

impl Reading {
    /// Hands on what was decoded. False if nobody reads any more.
    fn flush(&mut self) -> bool {
        self.builder.is_empty() || self.feeder.send(Feed::Chunk(self.builder.take()))
    }
}

/// librdkafka calls back into this; only ever from the poll thread.
pub(super) struct Context {
    topic: Arc<str>,
    membership: Arc<Membership>,
    events: mpsc::UnboundedSender<SourceEvent>,
    /// Kept to give to each [`Done`].
    commands: std_mpsc::Sender<Command>,
    asked: Mutex<std_mpsc::Receiver<Command>>,
    /// Commands that came while a revocation was waited for.
    deferred: Mutex<Vec<Command>>,
    revocations: AtomicU64,
    hand_over: Duration,
    closing: AtomicBool,
}

impl Context {
    pub(super) fn new(
        topic: Arc<str>,
        hand_over: Duration,
        events: mpsc::UnboundedSender<SourceEvent>,
        commands: std_mpsc::Sender<Command>,
        asked: std_mpsc::Receiver<Command>,
    ) -> Context {
        Context {
            topic,
            membership: Arc::default(),
            events,
            commands,
            asked: Mutex::new(asked),
            deferred: Mutex::default(),
            revocations: AtomicU64::new(0),
            hand_over,
            closing: AtomicBool::new(false),
        }
    }

    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership)
    }

    fn send(&self, event: SourceEvent) {
        let _ = self.events.send(event); // a worker that stops has no ear for events
    }

    fn not_assigned(&self, partition: i32) -> SourceError {
        SourceError::NotAssigned { topic: self.topic.to_string(), partition }
    }

    fn list(&self, partition: i32, offset: Option<Offset>) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&self.topic, partition);
        if let Some(offset) = offset {
            // Refused only if negative; what is then asked for is in no log either and told as out of range.
            let _ = element.set_offset(rdkafka::Offset::Offset(offset.0));
        }
        list
    }

    /// Takes the new partitions in, paused. The offset is of no importance, but an absolute one spares
    /// librdkafka the question for a committed offset and leaves it in a state in which it can seek.
    fn assign(&self, consumer: &SourceConsumer, list: &mut TopicPartitionList) {
        let result = list
            .set_all_offsets(rdkafka::Offset::Offset(0))
            .and_then(|()| consumer.pause(list))
            .and_then(|()| match consumer.rebalance_protocol() {
                RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
                _ => consumer.assign(list),
            })
            .and_then(|()| consumer.pause(list));
        if let Err(error) = result {
            self.send(SourceEvent::Fatal(format!("partitions of {} could not be assigned: {error}", self.topic)));
            return;
        }
        let partitions = numbers(list);
        let mut assigned = lock(&self.membership.0);
        for &partition in &partitions {
            assigned.insert(partition, Partition::default());
        }
        drop(assigned);
        self.send(SourceEvent::Assigned(partitions));
    }

    fn revoke(&self, consumer: &SourceConsumer, list: &TopicPartitionList) {
        let partitions = numbers(list);
        let lost = consumer.assignment_lost();
        self.begin_leaving(&partitions);
        let revocation = self.revocations.fetch_add(1, Ordering::Relaxed);
        let done = Done::new(revocation, self.commands.clone());
        self.send(SourceEvent::Revoked { partitions: partitions.clone(), lost, done });
        if !lost && !partitions.is_empty() && !self.closing.load(Ordering::Relaxed) {
            self.wait_for_hand_over(revocation);
        }

        let mut assigned = lock(&self.membership.0);
        for partition in &partitions {
            assigned.remove(partition);
        }
        drop(assigned);
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
            _ => consumer.unassign(),
        };
        if let Err(error) = result {
            self.send(SourceEvent::Fatal(format!("partitions of {} could not be given up: {error}", self.topic)));
        }
    }

    /// Ends the readers.
    fn begin_leaving(&self, partitions: &[i32]) {
        let mut assigned = lock(&self.membership.0);
        for partition in partitions {
            if let Some(partition) = assigned.get_mut(partition) {
                partition.leaving = true;
                partition.reading = None;
            }
        }
    }

    /// Waits for the [`Done`]. Questions about partitions are answered meanwhile, or the partition's task could
    /// wait for the answer and this for the task.
    fn wait_for_hand_over(&self, revocation: u64) {
        let deadline = Instant::now() + self.hand_over;
        let asked = lock(&self.asked);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match asked.recv_timeout(left) {
                Ok(Command::HandOver { revocation: done }) if done == revocation => return,
                Ok(Command::HandOver { .. }) => {} // came after its deadline
                Ok(Command::IsAssigned { partition, reply }) => {
                    let _ = reply.send(self.membership.stays(partition)); // the asker may have gone
                }
                Ok(Command::ReadFrom { partition, reply, .. }) if !self.membership.stays(partition) => {
                    let _ = reply.send(Err(self.not_assigned(partition))); // the asker may have gone
                }
                Ok(command) => lock(&self.deferred).push(command),
                Err(_) => {
                    tracing::warn!(
                        topic = %self.topic,
                        waited = ?self.hand_over,
                        "revoked partitions are given up before their work was done; their next owner repeats it"
                    );
                    return;
                }
            }
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        log_line(level, fac, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        // These two are about one partition; the poll loop gets them too and tells its reader.
        if !matches!(code, RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::AutoOffsetReset) {
            self.send(SourceEvent::Error { code, reason: reason.to_owned() });
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &SourceConsumer, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        match what {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer, list),
        }
    }
}

/// Starts the thread. It ends with [`Command::Stop`], the group left.
pub(super) fn start(
    consumer: Arc<SourceConsumer>,
    max_buffered: usize,
    decoder: Arc<Decoder>,
) -> std::io::Result<thread::JoinHandle<()>> {
    let context = Arc::clone(consumer.context());
    let poller = Poller {
        consumer,
        context,
        decoder,
        max_buffered: max_buffered.max(1),
        positioning: Vec::new(),
        questions: Vec::new(),
    };
    thread::Builder::new().name("kafka-poll".into()).spawn(move || poller.run())
}

struct Poller {
    consumer: Arc<SourceConsumer>,
    context: Arc<Context>,
    decoder: Arc<Decoder>,
    max_buffered: usize,
    positioning: Vec<Positioning>,
    questions: Vec<(i32, oneshot::Sender<bool>)>,
}

/// A [`Command::ReadFrom`] on its way.
struct Positioning {
    partition: i32,
    offset: Offset,
    reply: oneshot::Sender<Result<Reader, SourceError>>,
    since: Instant,
    put_in_anew: bool,
}

impl Poller {
    fn run(mut self) {
        while self.take_commands() {
            self.drain(self.poll_timeout());
            self.hand_on();
            self.answer_questions();
            self.position();
            self.balance();
        }
        self.leave();
    }

    fn poll_timeout(&self) -> Duration {
        if !self.questions.is_empty() {
            Duration::ZERO
        } else if !self.positioning.is_empty() {
            POLL_TIMEOUT_BUSY
        } else {
            POLL_TIMEOUT
        }
    }

    /// False: stop.
    fn take_commands(&mut self) -> bool {
        let mut commands = std::mem::take(&mut *lock(&self.context.deferred));
        commands.extend(lock(&self.context.asked).try_iter());
        for command in commands {
            match command {
                Command::ReadFrom { partition, offset, reply } => self.positioning.push(Positioning {
                    partition,
                    offset,
                    reply,
                    since: Instant::now(),
                    put_in_anew: false,
                }),
                Command::IsAssigned { partition, reply } => self.questions.push((partition, reply)),
                Command::HandOver { .. } => {} // of a revocation that nobody waits for
                Command::Stop => return false,
            }
        }
        true
    }

    /// Polls until there is nothing more or enough. Rebalance callbacks run in here, so no lock is held.
    fn drain(&self, timeout: Duration) {
        let mut timeout = timeout;
        for _ in 0..DRAIN {
            match self.consumer.poll(timeout) {
                None => return,
                Some(Ok(message)) => self.take(&message),
                Some(Err(error)) => self.take_error(&error),
            }
            timeout = Duration::ZERO;
        }
    }

    fn take(&self, message: &BorrowedMessage<'_>) {
        let mut assigned = lock(&self.context.membership.0);
        let Some(reading) = assigned.get_mut(&message.partition()).and_then(|p| p.reading.as_mut()) else {
            return;
        };
        let offset = Offset(message.offset());
        if offset < reading.next {
            return;
        }
        reading.next = Offset(offset.0 + 1);
        let (timestamp, broker_time) = match message.timestamp() {
            Timestamp::NotAvailable => (-1, false),
            Timestamp::CreateTime(ms) => (ms, false),
            Timestamp::LogAppendTime(ms) => (ms, true),
        };
        reading.builder.push(RawRecord {
            offset,
            timestamp,
            broker_time,
            key: message.key(),
            value: message.payload(),
            headers: headers_of(message),
        });
    }

    fn take_error(&self, error: &KafkaError) {
        match error {
            KafkaError::PartitionEOF(partition) => self.end_of(*partition),
            KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::LogTruncation) => {
                self.find_out_of_range();
            }
            KafkaError::MessageConsumptionFatal(_) => self.context.send(SourceEvent::Fatal(format!(
                "the consumer of {} cannot go on: {error}; restart the worker",
                self.context.topic
            ))),
            _ => {} // told by the context, with its reason
        }
    }

    fn end_of(&self, partition: i32) {
        let position = self.consumer.position().ok().and_then(|list| {
            match list.find_partition(&self.context.topic, partition)?.offset() {
                rdkafka::Offset::Offset(offset) => Some(Offset(offset)),
                _ => None, // nothing came since the positioning
            }
        });
        let mut assigned = lock(&self.context.membership.0);
        let Some(entry) = assigned.get_mut(&partition) else { return };
        let Some(reading) = &mut entry.reading else { return };
        reading.next = reading.next.max(position.unwrap_or(reading.next));
        if !(reading.flush() && reading.feeder.send(Feed::End(reading.next))) {
            entry.reading = None;
        }
    }

    /// librdkafka stopped fetching a partition whose position is not in the log, and the binding does not say
    /// which one. A seek to where each one is tells: it is refused where fetching has stopped.
    fn find_out_of_range(&self) {
        let mut assigned = lock(&self.context.membership.0);
        for (&partition, entry) in assigned.iter_mut() {
            let Some(reading) = &mut entry.reading else { continue };
            if let Seek::NotFetching = self.seek(partition, reading.next) {
                let next = reading.next;
                let _ = reading.flush() && reading.feeder.send(Feed::OutOfRange(next)); // else nobody reads
                entry.reading = None;
                entry.stuck = true;
            }
        }
    }

    fn hand_on(&self) {
        let mut assigned = lock(&self.context.membership.0);
        for (&partition, entry) in assigned.iter_mut() {
            if entry.reading.as_mut().is_some_and(|reading| !reading.flush()) {
                entry.reading = None;
                self.log_failed("pausing", partition, self.consumer.pause(&self.context.list(partition, None)));
            }
        }
    }

    fn answer_questions(&mut self) {
        if self.questions.is_empty() {
            return;
        }
        for _ in 0..SETTLE {
            self.drain(Duration::ZERO);
        }
        for (partition, reply) in std::mem::take(&mut self.questions) {
            let _ = reply.send(self.context.membership.stays(partition)); // the asker may have gone
        }
    }

    fn position(&mut self) {
        for one in std::mem::take(&mut self.positioning) {
            if let Some(unfinished) = self.position_one(one) {
                self.positioning.push(unfinished);
            }
        }
    }

    /// Returns what is to be tried again after the next poll.
    fn position_one(&self, mut one: Positioning) -> Option<Positioning> {
        let mut assigned = lock(&self.context.membership.0);
        let Some(entry) = assigned.get_mut(&one.partition).filter(|entry| !entry.leaving) else {
            let _ = one.reply.send(Err(self.context.not_assigned(one.partition))); // the asker may have gone
            return None;
        };
        entry.reading = None;
        match self.seek(one.partition, one.offset) {
            Seek::Done => {
                entry.stuck = false;
                let (feeder, reader) = Feeder::new();
                if one.reply.send(Ok(reader)).is_ok() {
                    entry.reading = Some(Reading {
                        next: one.offset,
                        builder: ChunkBuilder::new(Arc::clone(&self.decoder)),
                        feeder,
                        paused: false,
                    });
                    let list = self.context.list(one.partition, None);
                    self.log_failed("resuming", one.partition, self.consumer.resume(&list));
                }
                None
            }
            Seek::Failed(error) => {
                let _ = one.reply.send(Err(self.failed(one.partition, &error))); // the asker may have gone
                None
            }
            Seek::NotFetching if one.since.elapsed() > POSITION_TIMEOUT => {
                let error = KafkaError::Seek("fetching does not start".into());
                let _ = one.reply.send(Err(self.failed(one.partition, &error))); // the asker may have gone
                None
            }
            Seek::NotFetching => {
                if !one.put_in_anew && (entry.stuck || one.since.elapsed() > START_PATIENCE) {
                    self.log_failed("starting anew", one.partition, self.put_in_anew(one.partition, one.offset));
                    one.put_in_anew = true;
                }
                Some(one)
            }
        }
    }

    fn failed(&self, partition: i32, error: &KafkaError) -> SourceError {
        SourceError::broker("positioning", &self.context.topic, partition, error)
    }

    /// Waited for: afterwards the queue holds nothing of this partition from before.
    fn seek(&self, partition: i32, offset: Offset) -> Seek {
        let list = self.context.list(partition, Some(offset));
        let answer = match self.consumer.seek_partitions(list, SEEK_TIMEOUT) {
            Ok(answer) => answer,
            Err(error) => return Seek::Failed(error),
        };
        let result = answer
            .find_partition(&self.context.topic, partition)
            .map_or(Err(KafkaError::Seek("the partition is not in the answer".into())), |e| e.error());
        match result {
            Ok(()) => Seek::Done,
            Err(error) => match error.rdkafka_error_code() {
                Some(
                    RDKafkaErrorCode::State
                    | RDKafkaErrorCode::PreviousInProgress
                    | RDKafkaErrorCode::UnknownPartition,
                ) => Seek::NotFetching,
                _ => Seek::Failed(error),
            },
        }
    }

    fn put_in_anew(&self, partition: i32, offset: Offset) -> KafkaResult<()> {
        self.consumer.incremental_unassign(&self.context.list(partition, None))?;
        let list = self.context.list(partition, Some(offset));
        self.consumer.pause(&list)?;
        self.consumer.incremental_assign(&list)?;
        self.consumer.pause(&list)
    }

    /// Pauses partitions whose readers have enough, resumes those that have half of it.
    fn balance(&self) {
        let mut assigned = lock(&self.context.membership.0);
        for (&partition, entry) in assigned.iter_mut() {
            let Some(reading) = &mut entry.reading else { continue };
            let buffered = reading.feeder.buffered();
            if !reading.paused && buffered > self.max_buffered {
                let result = self.consumer.pause(&self.context.list(partition, None));
                reading.paused = self.log_failed("pausing", partition, result);
            } else if reading.paused && buffered <= self.max_buffered / 2 {
                let result = self.consumer.resume(&self.context.list(partition, None));
                reading.paused = !self.log_failed("resuming", partition, result);
            }
        }
    }

    /// Whether it succeeded.
    fn log_failed(&self, what: &str, partition: i32, result: KafkaResult<()>) -> bool {
        result
            .inspect_err(|error| {
                tracing::warn!(topic = %self.context.topic, partition, %error, "{what} the partition failed");
            })
            .is_ok()
    }

    /// Leaves the group. The consumer does that when it is dropped, which is here unless a request still uses it.
    fn leave(self) {
        self.context.closing.store(true, Ordering::Relaxed);
        for entry in lock(&self.context.membership.0).values_mut() {
            entry.reading = None;
        }
        let deadline = Instant::now() + LEAVE_PATIENCE;
        let mut shared = self.consumer;
        while let Err(still_shared) = Arc::try_unwrap(shared) {
            if Instant::now() > deadline {
                tracing::warn!(topic = %self.context.topic, "the group is left later: a request still uses the consumer");
                return;
            }
            shared = still_shared;
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// How a seek ended.
enum Seek {
    Done,
    NotFetching,
    Failed(KafkaError),
}

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(TopicPartitionListElem::partition).collect()
}

fn headers_of(message: &BorrowedMessage<'_>) -> Option<Headers> {
    let headers = message.headers()?;
    Some(headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect())
}
