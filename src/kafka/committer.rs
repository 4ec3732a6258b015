//! Commits of delivered positions: one thread, and one request for all that wait.
//!
//! The delivered position is the committed offset, with the watermark in the commit's metadata text:
//! `tickwatch/1 watermark=<ms>`, nothing after `=` before the first tick; ` updates` at the end, if the updates of open
//! candles that were filed under that offset are delivered too.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::oneshot;

use super::membership::{Membership, SourceConsumer};
use super::source::SourceError;
use crate::domain::{Offset, Position, Watermark};

/// Names the format, so that another one can follow.
const METADATA_PREFIX: &str = "tickwatch/1 watermark=";
const UPDATES: &str = " updates";

/// How long a commit is tried again while the group or its coordinator is between two states.
const RETRY_FOR: Duration = Duration::from_secs(3);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What is committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The committed offset, next to read.
    pub offset: Offset,
    /// The watermark in the metadata; `None`: the metadata is not tickwatch's.
    pub watermark: Option<Watermark>,
    /// The updates of this offset are delivered too.
    pub updates: bool,
    /// The metadata as it is.
    pub metadata: String,
}

impl Committed {
    /// From what the broker keeps; the metadata is whatever somebody committed.
    pub fn new(offset: Offset, metadata: &str) -> Committed {
        let (text, updates) = metadata.strip_suffix(UPDATES).map_or((metadata, false), |text| (text, true));
        Committed { offset, watermark: parse_metadata(text), updates, metadata: metadata.to_owned() }
    }
}

/// The metadata text of a commit at `position`.
pub(super) fn metadata(position: Position) -> String {
    format!("{METADATA_PREFIX}{}{}", position.watermark, if position.updates { UPDATES } else { "" })
}

fn parse_metadata(text: &str) -> Option<Watermark> {
    match text.strip_prefix(METADATA_PREFIX)? {
        "" => Some(Watermark::NEVER),
        ms => ms.parse().ok().map(Watermark::at),
    }
}

/// The positions of `partitions` as a list for librdkafka, each with its watermark's metadata.
pub(super) fn offsets_of(
    topic: &str,
    positions: impl IntoIterator<Item = (i32, Position)>,
) -> Result<TopicPartitionList, rdkafka::error::KafkaError> {
    let mut list = TopicPartitionList::new();
    for (partition, position) in positions {
        let mut element = list.add_partition(topic, partition);
        element.set_offset(rdkafka::Offset::Offset(position.offset.0))?;
        element.set_metadata(metadata(position));
    }
    Ok(list)
}

/// The committing thread. It ends when asked to, or with its last handle.
pub(super) struct Committer {
    thread: thread::JoinHandle<()>,
    requests: CommitterHandle,
}

/// Asks the committing thread.
#[derive(Clone)]
pub(super) struct CommitterHandle(mpsc::Sender<Request>);

enum Request {
    Commit(Waiting),
    Stop,
}

struct Waiting {
    partition: i32,
    position: Position,
    reply: oneshot::Sender<Result<(), SourceError>>,
}

impl Committer {
    pub(super) fn start(
        topic: Arc<str>,
        consumer: Weak<SourceConsumer>,
        membership: Arc<Membership>,
    ) -> std::io::Result<Committer> {
        let (sender, requests) = mpsc::channel();
        let worker = CommitThread { topic, consumer, membership, requests };
        let thread = thread::Builder::new().name("kafka-commit".into()).spawn(move || worker.run())?;
        Ok(Committer { thread, requests: CommitterHandle(sender) })
    }

    pub(super) fn handle(&self) -> CommitterHandle {
        self.requests.clone()
    }

    /// Finishes what was asked before, then ends the thread. Blocks.
    pub(super) fn stop(self) {
        // A failed send or join means that the thread has ended already.
        let _ = self.requests.0.send(Request::Stop);
        let _ = self.thread.join();
    }
}

impl CommitterHandle {
    pub(super) async fn commit(&self, partition: i32, position: Position) -> Result<(), SourceError> {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { partition, position, reply };
        self.0.send(Request::Commit(waiting)).map_err(|_| SourceError::Closed)?;
        answer.await.map_err(|_| SourceError::Closed)?
    }
}

struct CommitThread {
    topic: Arc<str>,
    consumer: Weak<SourceConsumer>,
    membership: Arc<Membership>,
    requests: mpsc::Receiver<Request>,
}

impl CommitThread {
    fn run(self) {
        let mut stopping = false;
        while !stopping {
            let Ok(first) = self.requests.recv() else { return };
            let mut waiting = Vec::new();
            for request in std::iter::once(first).chain(self.requests.try_iter()) {
                match request {
                    Request::Commit(one) => waiting.push(one),
                    Request::Stop => stopping = true,
                }
            }
            if !waiting.is_empty() {
                self.commit(waiting);
            }
        }
    }

    fn commit(&self, waiting: Vec<Waiting>) {
        let deadline = Instant::now() + RETRY_FOR;
        let mut waiting = waiting;
        loop {
            waiting = self.refuse_not_assigned(waiting);
            if waiting.is_empty() {
                return;
            }
            match self.try_commit(&waiting) {
                Err(error) if is_passing(&error) && Instant::now() < deadline => thread::sleep(RETRY_PAUSE),
                result => {
                    for one in waiting {
                        let _ = one.reply.send(result.clone()); // the asker may have gone
                    }
                    return;
                }
            }
        }
    }

    /// The broker checks membership, not ownership of the partition: a commit after the hand-over would move the
    /// new owner's offset back.
    fn refuse_not_assigned(&self, waiting: Vec<Waiting>) -> Vec<Waiting> {
        let (assigned, gone): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|one| self.membership.may_commit(one.partition));
        for one in gone {
            let error = SourceError::NotAssigned { topic: self.topic.to_string(), partition: one.partition };
            let _ = one.reply.send(Err(error)); // the asker may have gone
        }
        assigned
    }

    /// Of several positions of one partition the last asked for counts.
    fn try_commit(&self, waiting: &[Waiting]) -> Result<(), SourceError> {
        let consumer = self.consumer.upgrade().ok_or(SourceError::Closed)?;
        let latest: BTreeMap<i32, Position> = waiting.iter().map(|one| (one.partition, one.position)).collect();
        offsets_of(&self.topic, latest)
            .and_then(|offsets| consumer.commit(&offsets, CommitMode::Sync))
            .map_err(|error| SourceError::broker("the commit", &self.topic, waiting[0].partition, &error))
    }
}

/// Whether the same commit can succeed in a moment. A refused generation is the one before a rebalance that this
/// member has not heard the end of: nothing was committed, and if the partition goes, so does the right to commit.
fn is_passing(error: &SourceError) -> bool {
    use RDKafkaErrorCode as Code;
    let SourceError::Broker { code: Some(code), .. } = error else { return false };
    matches!(
        code,
        Code::RebalanceInProgress
            | Code::IllegalGeneration
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::WaitingForCoordinator
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_the_metadata_text() {
        for watermark in [Watermark::NEVER, Watermark::at(0), Watermark::at(-5), Watermark::at(1_700_000_000_000)] {
            for updates in [false, true] {
                let position = Position { updates, ..Position::at(Offset(3), watermark) };
                let found = Committed::new(Offset(3), &metadata(position));
                assert_eq!((found.watermark, found.updates), (Some(watermark), updates));
            }
        }
    }

    #[test]
    fn metadata_of_others_is_unreadable_not_a_watermark() {
        for text in ["", "tickwatch/2 watermark=5", "tickwatch/1 watermark=soon", "AgAAAA=="] {
            assert_eq!(Committed::new(Offset(3), text).watermark, None, "{text:?}");
        }
    }
}
