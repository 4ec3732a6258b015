//! The membership in the group: what is assigned, and what happens when that changes.
//!
//! librdkafka calls back from within a poll, so everything here runs on the poll thread, except for the question
//! whether a commit is still this consumer's to make. New partitions start paused and wait to be positioned. A
//! revocation waits, up to a deadline, until what is in flight is committed, because the group hands the
//! partitions on as soon as the callback returns.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::{mpsc, oneshot};

use super::client::{lock, log_line};
use super::reader::{Feed, Feeder, Reader};
use super::source::{Done, SourceError, SourceEvent};
use crate::domain::Offset;
use crate::input::ChunkBuilder;

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
pub(super) struct Membership(pub(super) Mutex<BTreeMap<i32, Partition>>);

#[derive(Default)]
pub(super) struct Partition {
    pub(super) reading: Option<Reading>,
    /// Its revocation has begun: commits go through, nothing else.
    pub(super) leaving: bool,
    /// Fetching ended because the position was out of range.
    pub(super) stuck: bool,
}

/// A partition on its way to a reader.
pub(super) struct Reading {
    /// Next offset to read.
    pub(super) next: Offset,
    pub(super) builder: ChunkBuilder,
    pub(super) feeder: Feeder,
    pub(super) paused: bool,
}

impl Membership {
    /// Whether a commit is still this consumer's to make: until the partition is handed over.
    pub(super) fn may_commit(&self, partition: i32) -> bool {
        lock(&self.0).contains_key(&partition)
    }

    pub(super) fn stays(&self, partition: i32) -> bool {
        lock(&self.0).get(&partition).is_some_and(|p| !p.leaving)
    }
}

impl Reading {
    /// Hands on what was decoded. False if nobody reads any more.
    pub(super) fn flush(&mut self) -> bool {
        self.builder.is_empty() || self.feeder.send(Feed::Chunk(self.builder.take()))
    }
}

/// librdkafka calls back into this; only ever from the poll thread.
pub(super) struct Context {
    pub(super) topic: Arc<str>,
    pub(super) membership: Arc<Membership>,
    events: mpsc::UnboundedSender<SourceEvent>,
    /// Kept to give to each [`Done`].
    commands: std_mpsc::Sender<Command>,
    pub(super) asked: Mutex<std_mpsc::Receiver<Command>>,
    /// Commands that came while a revocation was waited for.
    pub(super) deferred: Mutex<Vec<Command>>,
    revocations: AtomicU64,
    hand_over: Duration,
    pub(super) closing: AtomicBool,
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

    pub(super) fn send(&self, event: SourceEvent) {
        let _ = self.events.send(event); // a worker that stops has no ear for events
    }

    pub(super) fn not_assigned(&self, partition: i32) -> SourceError {
        SourceError::NotAssigned { topic: self.topic.to_string(), partition }
    }

    pub(super) fn list(&self, partition: i32, offset: Option<Offset>) -> TopicPartitionList {
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

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(TopicPartitionListElem::partition).collect()
}
