//! An output topic as its readers see it, record by record, for `tickwatch tail`: committed records only, no group is
//! joined, nothing is committed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Asking, KafkaSetupError, asking_config};
use super::ends::serve_events;
use crate::config::KafkaConfig;

/// How long the brokers may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two questions for the topic's partitions.
const PARTITIONS: Duration = Duration::from_secs(5);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Behind what is there now.
    Now,
    /// At the oldest record still there.
    Start,
}

/// A topic that cannot be followed (any more).
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The client's configuration.
    #[error(transparent)]
    Setup(#[from] KafkaSetupError),
    /// The brokers do not give the topic out.
    #[error(
        "topic {topic} cannot be followed: {reason}; check its name, and that this user may read it \
         (kafka-acls.sh --list)"
    )]
    Topic {
        /// The topic.
        topic: String,
        /// The brokers' words.
        reason: String,
    },
}

/// Reads every partition of a topic, those too that are added while it reads.
pub struct Follower {
    consumer: BaseConsumer<Asking>,
    topic: String,
    known: BTreeSet<i32>,
    looked: Instant,
}

impl Follower {
    /// Takes the topic up. Blocks until the brokers said where each partition ends: what is sent from then on comes.
    pub fn start(kafka: &KafkaConfig, topic: &str, begin: Begin) -> Result<Follower, FollowError> {
        let consumer: BaseConsumer<Asking> = asking_config(kafka)
            .set("group.id", "tickwatch-tail") // librdkafka wants one to assign; nothing is committed to it
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest") // where retention overtook the reader
            .set("fetch.wait.max.ms", "100") // a worker's output is shown at once, and a stop is not held up
            .create_with_context(Asking::default())
            .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
        let mut follower =
            Follower { consumer, topic: topic.to_owned(), known: BTreeSet::new(), looked: Instant::now() };
        follower.take_up(begin).map_err(|error| follower.refused(&error))?;
        Ok(follower)
    }

    /// The next record, if one comes within `wait`.
    pub fn next(&mut self, wait: Duration) -> Result<Option<BorrowedMessage<'_>>, FollowError> {
        if self.looked.elapsed() > PARTITIONS {
            self.looked = Instant::now();
            // What cannot be asked now is asked again; a partition that is new is read from its start.
            if let Err(error) = self.take_up(Begin::Start) {
                tracing::debug!(%error, topic = self.topic, "the topic's partitions are not known");
            }
        }
        match self.consumer.poll(wait) {
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(error)) if is_final(&error) => Err(self.refused(&error)),
            // librdkafka goes on by itself, and has written what it met to the log.
            Some(Err(_)) | None => Ok(None),
        }
    }

    /// Adds the partitions that are not read yet.
    fn take_up(&mut self, begin: Begin) -> Result<(), KafkaError> {
        let metadata = self.consumer.fetch_metadata(Some(&self.topic), TIMEOUT)?;
        let found = metadata.topics().iter().find(|found| found.name() == self.topic);
        let partitions = found.map_or(&[][..], |topic| topic.partitions());
        let mut new = TopicPartitionList::new();
        for partition in partitions.iter().map(MetadataPartition::id) {
            if self.known.contains(&partition) {
                continue;
            }
            let from = match begin {
                Begin::Start => Offset::Beginning,
                Begin::Now => Offset::Offset(self.consumer.fetch_watermarks(&self.topic, partition, TIMEOUT)?.1),
            };
            new.add_partition_offset(&self.topic, partition, from)?;
        }
        if new.count() > 0 {
            self.consumer.incremental_assign(&new)?;
            self.known.extend(new.elements().iter().map(TopicPartitionListElem::partition));
        }
        Ok(())
    }

    fn refused(&self, error: &KafkaError) -> FollowError {
        serve_events(&self.consumer);
        let reason = match error.rdkafka_error_code() {
            Some(code) => code.to_string(),
            None => self.consumer.context().last_error().unwrap_or_else(|| error.to_string()),
        };
        FollowError::Topic { topic: self.topic.clone(), reason }
    }
}

/// Whether waiting does not help. The group is not among it: it is never joined, so its rights are not needed.
fn is_final(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::TopicAuthorizationFailed | Code::Fatal)
    )
}
