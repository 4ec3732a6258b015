//! What the worker holds of the source topic: a membership in the group, a reader a partition, commits.
//!
//! ```text
//! Source::start ─→ SourceEvent::Assigned ─→ committed, … ─→ read_from ─→ Reader::next … commit
//!                  SourceEvent::Revoked  ─→ finish, commit ─→ drop Done
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak, mpsc as std_mpsc};
use std::thread;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use tokio::sync::{mpsc, oneshot};

use super::client::{KafkaSetupError, consumer_config};
use super::committer::{Committed, Committer, CommitterHandle};
use super::membership::{Command, Context, SourceConsumer};
use super::poll;
use super::reader::Reader;
use crate::config::KafkaConfig;
use crate::domain::{Offset, Position};
use crate::input::Decoder;

/// How long the broker may take to say what is committed, an unfinished transaction on the offset included.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(15);

/// A member of the consumer group, reading one topic. Dropped without [`close`](Source::close) it leaves the
/// group too, but nobody waits for that.
pub struct Source {
    handle: SourceHandle,
    stop: StopOnDrop,
    poller: thread::JoinHandle<()>,
    committer: Committer,
}

/// Ends the poll thread.
struct StopOnDrop(std_mpsc::Sender<Command>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Command::Stop); // it may have ended already
    }
}

/// Asks the source; cheap to clone, for any task or thread.
#[derive(Clone)]
pub struct SourceHandle {
    topic: Arc<str>,
    commands: std_mpsc::Sender<Command>,
    committer: CommitterHandle,
    /// Weak: the group is left when the source is closed, whoever still has a handle.
    consumer: Weak<SourceConsumer>,
}

/// What happens to the membership.
#[derive(Debug)]
pub enum SourceEvent {
    /// These partitions are now this consumer's, in addition to those it has. Nothing is read until
    /// [`SourceHandle::read_from`]. Empty: the group was joined, with nothing (more) to do.
    Assigned(Vec<i32>),
    /// These partitions go to another consumer; their readers have ended.
    Revoked {
        /// The partitions that go.
        partitions: Vec<i32>,
        /// Whether they are another's already (a session ran out): nothing of theirs can be committed.
        lost: bool,
        /// Drop it when what was in flight is committed. Until then, or the deadline given to
        /// [`Source::start`], the partitions are kept. Nobody waits for it if `lost`.
        done: Done,
    },
    /// librdkafka could not do something and goes on trying: brokers down, a name not resolved, no permission.
    Error {
        /// The kind.
        code: RDKafkaErrorCode,
        /// librdkafka's words, with the address.
        reason: String,
    },
    /// The consumer cannot go on; close the source.
    Fatal(String),
}

/// Hands revoked partitions over when it is dropped.
#[derive(Debug)]
pub struct Done {
    revocation: u64,
    commands: std_mpsc::Sender<Command>,
}

impl Done {
    pub(super) fn new(revocation: u64, commands: std_mpsc::Sender<Command>) -> Done {
        Done { revocation, commands }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        // Nobody listens once the source is closed.
        let _ = self.commands.send(Command::HandOver { revocation: self.revocation });
    }
}

/// Why the source did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The partition is not in this consumer's assignment: drop it.
    #[error("{topic}/{partition} is not assigned to this consumer (any more); another worker has it")]
    NotAssigned {
        /// The source topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// The source was closed.
    #[error("the source is closed")]
    Closed,
    /// The broker refused, or did not answer in time; whether a commit took place is then unknown.
    #[error("{what} of {topic}/{partition} failed: {reason}; take the partition over again")]
    Broker {
        /// `the commit`, ….
        what: &'static str,
        /// The source topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The kind of error, where librdkafka tells it.
        code: Option<RDKafkaErrorCode>,
        /// librdkafka's words.
        reason: String,
    },
}

impl SourceError {
    pub(super) fn broker(what: &'static str, topic: &str, partition: i32, error: &KafkaError) -> SourceError {
        SourceError::Broker {
            what,
            topic: topic.to_owned(),
            partition,
            code: error.rdkafka_error_code(),
            reason: error.to_string(),
        }
    }
}

impl Source {
    /// Joins the group and starts the threads that poll and commit.
    ///
    /// `max_buffered`: records a reader may hold before its partition is paused. `hand_over`: how long revoked
    /// partitions are kept for their last commit. Errors are of configuration; brokers that cannot be reached
    /// are a [`SourceEvent::Error`].
    pub fn start(
        kafka: &KafkaConfig,
        max_buffered: u32,
        hand_over: Duration,
        decoder: Arc<Decoder>,
    ) -> Result<(Source, mpsc::UnboundedReceiver<SourceEvent>), KafkaSetupError> {
        let failed = |error| KafkaSetupError::of("consumer", kafka, error);
        let thread_failed = |error: std::io::Error| failed(KafkaError::ClientCreation(error.to_string()));

        let topic: Arc<str> = kafka.topic.as_str().into();
        let (events, received) = mpsc::unbounded_channel();
        let (commands, asked) = std_mpsc::channel();
        let context = Context::new(Arc::clone(&topic), hand_over, events, commands.clone(), asked);
        let membership = context.membership();
        let consumer: SourceConsumer = consumer_config(kafka)?.create_with_context(context).map_err(failed)?;
        consumer.subscribe(&[topic.as_ref()]).map_err(failed)?;
        let consumer = Arc::new(consumer);

        let committer =
            Committer::start(Arc::clone(&topic), Arc::downgrade(&consumer), membership).map_err(thread_failed)?;
        let stop = StopOnDrop(commands.clone());
        let handle =
            SourceHandle { topic, commands, committer: committer.handle(), consumer: Arc::downgrade(&consumer) };
        let poller = poll::start(consumer, max_buffered as usize, decoder).map_err(thread_failed)?;
        Ok((Source { handle, stop, poller, committer }, received))
    }

    /// A handle for the partitions' tasks.
    pub fn handle(&self) -> SourceHandle {
        self.handle.clone()
    }

    /// Finishes the commits asked for, leaves the group and ends the threads. Partitions are given up at once:
    /// stop their work before. Blocks, without a bound where no broker answers.
    pub fn close(self) {
        let Source { stop, poller, committer, .. } = self;
        committer.stop();
        drop(stop);
        let _ = poller.join(); // fails only if it panicked, which has been reported
    }
}

impl SourceHandle {
    /// Starts, or starts again, to read a partition at `offset`. The reader sees nothing that was read before
    /// this call, and a reader made before it ends.
    pub async fn read_from(&self, partition: i32, offset: Offset) -> Result<Reader, SourceError> {
        self.ask(|reply| Command::ReadFrom { partition, offset, reply }).await?
    }

    /// Whether the partition is in this consumer's assignment and stays there, rebalance events served first.
    /// False once the source is closed.
    pub async fn is_assigned(&self, partition: i32) -> bool {
        self.ask(|reply| Command::IsAssigned { partition, reply }).await.unwrap_or(false)
    }

    /// What is committed for the partition; `None`: nothing. An offset inside an unfinished transaction is
    /// waited for (up to 15 s).
    pub async fn committed(&self, partition: i32) -> Result<Option<Committed>, SourceError> {
        let consumer = self.consumer.upgrade().ok_or(SourceError::Closed)?;
        let topic = Arc::clone(&self.topic);
        let asked = tokio::task::spawn_blocking(move || committed_blocking(&consumer, &topic, partition)).await;
        asked.unwrap_or_else(|error| {
            Err(SourceError::Broker {
                what: "reading the committed offset",
                topic: self.topic.to_string(),
                partition,
                code: None,
                reason: error.to_string(),
            })
        })
    }

    /// Commits the delivered position: the offset, and the watermark as its metadata. What several partitions
    /// ask for at the same time goes in one request.
    pub async fn commit(&self, partition: i32, position: Position) -> Result<(), SourceError> {
        self.committer.commit(partition, position).await
    }

    /// This member's identity, for [`TransactionalSink::commit`](super::TransactionalSink::commit). Take it new
    /// for each transaction: it changes with each rebalance.
    pub fn group_metadata(&self) -> Option<ConsumerGroupMetadata> {
        self.consumer.upgrade()?.group_metadata()
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SourceError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| SourceError::Closed)?;
        answer.await.map_err(|_| SourceError::Closed)
    }
}

fn committed_blocking(
    consumer: &SourceConsumer,
    topic: &str,
    partition: i32,
) -> Result<Option<Committed>, SourceError> {
    let failed = |error| SourceError::broker("reading the committed offset", topic, partition, &error);
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    let answer = consumer.committed_offsets(list, COMMITTED_TIMEOUT).map_err(failed)?;
    let Some(element) = answer.find_partition(topic, partition) else { return Ok(None) };
    element.error().map_err(failed)?;
    Ok(match element.offset() {
        rdkafka::Offset::Offset(offset) => Some(Committed::new(Offset(offset), &metadata_of(&element))),
        _ => None,
    })
}

/// The binding panics over bytes that are no text; to us they are metadata of somebody else.
fn metadata_of(element: &TopicPartitionListElem<'_>) -> String {
    let read = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
    read.unwrap_or_else(|_| "bytes that are no text".to_owned())
}
