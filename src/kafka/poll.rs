//! The thread that polls the consumer: records to readers, and positioning between polls.
//!
//! It never waits for work, with one exception: the hand-over of revoked partitions (`membership`).
//!
//! # Positioning
//!
//! Assigned partitions start paused. [`Command::ReadFrom`] seeks and resumes. librdkafka tags every queued record
//! with its partition's version and a seek raises it, so after a seek that was waited for, no record read before
//! it comes out of the queue. A seek is refused (erroneous state) where fetching has not started yet, soon over,
//! and where it ended because the position was out of range: there the partition is taken out of the assignment
//! and put back, which starts it anew. That is not done always, because librdkafka would count it as the answer
//! to a revocation that waits in the queue at that moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::Timestamp;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message};
use tokio::sync::oneshot;

use super::client::lock;
use super::membership::{Command, Context, Reading, SourceConsumer};
use super::reader::{Buffered, Feed, Feeder, Reader};
use super::source::{SourceError, SourceEvent};
use crate::domain::Offset;
use crate::domain::record::Headers;
use crate::input::{ChunkBuilder, Decoder, RawRecord};

/// Bounds how long a command waits while there is nothing to read.
const POLL_TIMEOUT: Duration = Duration::from_millis(10);
/// The same while a positioning is on its way.
const POLL_TIMEOUT_BUSY: Duration = Duration::from_millis(1);
/// How often librdkafka's own thread is woken. It sends a heartbeat, and so hears of a rebalance, only when it is
/// awake; while nothing is asked of it, it sleeps for a second at a time, whatever `heartbeat.interval.ms` says.
const WAKE: Duration = Duration::from_millis(50);
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
/// Bytes that a reader may hold before its partition is paused, however few records they are.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Most headers of a record that are kept for its dead letter, and most bytes of them.
const MAX_HEADERS: usize = 100;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Tells in a dead letter how many headers were more than that.
const HEADERS_LEFT_OUT: &str = "headers.left_out";
/// How long a request that still uses the consumer may hold up leaving the group.
const LEAVE_PATIENCE: Duration = Duration::from_secs(20);

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
        woken: Instant::now(),
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
    woken: Instant,
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
            self.wake();
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
                    self.resume(one.partition, one.offset);
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

    /// Resumes a paused partition at `next`; whether it succeeded. To resume does not wake the thread that fetches from
    /// its broker, which sleeps up to a second while it has nothing to fetch. A seek does, but for one to offset 0.
    fn resume(&self, partition: i32, next: Offset) -> bool {
        let result = self.consumer.resume(&self.context.list(partition, None));
        let resumed = self.log_failed("resuming", partition, result);
        if let Seek::Failed(error) = self.seek(partition, next) {
            self.log_failed("waking", partition, Err(error));
        }
        resumed
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
            let Buffered { records, bytes } = reading.feeder.buffered();
            if !reading.paused && (records > self.max_buffered || bytes > MAX_BUFFERED_BYTES) {
                let result = self.consumer.pause(&self.context.list(partition, None));
                reading.paused = self.log_failed("pausing", partition, result);
            } else if reading.paused && records <= self.max_buffered / 2 && bytes <= MAX_BUFFERED_BYTES / 2 {
                reading.paused = !self.resume(partition, reading.next);
            }
        }
    }

    /// The answer is of no importance: any question that goes through librdkafka's own thread wakes it.
    fn wake(&mut self) {
        if self.woken.elapsed() >= WAKE {
            self.woken = Instant::now();
            let _ = self.consumer.rebalance_protocol();
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

fn headers_of(message: &BorrowedMessage<'_>) -> Option<Headers> {
    let headers = message.headers()?;
    let found = headers.iter().map(|header| (header.key, header.value));
    Some(kept_headers(found))
}

/// The first headers that are within bounds, and how many were left out.
fn kept_headers<'a>(found: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> Headers {
    let (mut kept, mut bytes, mut left_out) = (Headers::new(), 0, 0_usize);
    for (name, value) in found {
        bytes += name.len() + value.map_or(0, <[u8]>::len);
        if left_out > 0 || kept.len() == MAX_HEADERS || bytes > MAX_HEADER_BYTES {
            left_out += 1;
        } else {
            kept.push((name.to_owned(), value.map(<[u8]>::to_vec)));
        }
    }
    if left_out > 0 {
        kept.push((HEADERS_LEFT_OUT.to_owned(), Some(left_out.to_string().into_bytes())));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_past_the_bounds_are_left_out_and_counted() {
        let names: Vec<String> = (0..MAX_HEADERS + 7).map(|number| format!("h{number}")).collect();
        let kept = kept_headers(names.iter().map(|name| (name.as_str(), None)));
        assert_eq!(kept.len(), MAX_HEADERS + 1);
        assert_eq!(kept.last().unwrap(), &(HEADERS_LEFT_OUT.to_owned(), Some(b"7".to_vec())));

        let large = vec![b'x'; MAX_HEADER_BYTES];
        let kept = kept_headers([("a", Some(&b"1"[..])), ("b", Some(&large)), ("c", None)].into_iter());
        let expected = [("a".to_owned(), Some(b"1".to_vec())), (HEADERS_LEFT_OUT.to_owned(), Some(b"2".to_vec()))];
        assert_eq!(kept, expected);
    }
}
