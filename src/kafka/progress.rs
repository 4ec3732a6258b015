//! How far a group is in the source topic, for people: asked without joining the group, so that nobody's
//! partitions move.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Asking, KafkaSetupError, asking_config};
use super::ends::serve_events;
use crate::config::KafkaConfig;

/// How long the broker may take to answer each question.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What Kafka knows of one source partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// The group's committed offset: the delivered position.
    pub committed: Option<i64>,
    /// The first offset still there.
    pub start_offset: Option<i64>,
    /// The end of the log, records of open transactions counted.
    pub end_offset: Option<i64>,
}

impl Progress {
    /// Offsets from the committed one, or from the log's start, to the end; transaction markers count too.
    pub fn lag(self) -> Option<i64> {
        let next = self.committed.or(self.start_offset)?;
        Some((self.end_offset? - next).max(0))
    }
}

/// Asks for all partitions of the source topic, by number.
pub async fn read(kafka: &KafkaConfig) -> Result<BTreeMap<i32, Progress>> {
    let kafka = kafka.clone();
    tokio::task::spawn_blocking(move || read_blocking(&kafka)).await?
}

fn read_blocking(kafka: &KafkaConfig) -> Result<BTreeMap<i32, Progress>> {
    let client: BaseConsumer<Asking> = asking_config(kafka)
        .set("group.id", &kafka.group)
        .set("isolation.level", "read_uncommitted")
        .create_with_context(Asking::default())
        .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
    let topic = &kafka.topic;
    let metadata = client
        .fetch_metadata(Some(topic), TIMEOUT)
        .with_context(|| format!("no answer from {}; check that it runs, and [kafka] brokers", kafka.brokers))?;
    let partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
    let mut progress: BTreeMap<_, _> = partitions.map(|found| (found.id(), Progress::default())).collect();
    if progress.is_empty() {
        bail!("there is no topic {topic}; create it, or correct [kafka] topic");
    }
    let mut list = TopicPartitionList::new();
    for partition in progress.keys() {
        list.add_partition(topic, *partition);
    }
    let committed = client
        .committed_offsets(list, TIMEOUT)
        .with_context(|| format!("the committed offsets of group {} are not known", kafka.group))?;
    for element in committed.elements() {
        if let (Some(found), Offset::Offset(offset)) = (progress.get_mut(&element.partition()), element.offset()) {
            found.committed = Some(offset);
        }
    }
    for (partition, found) in &mut progress {
        let (start, end) = client
            .fetch_watermarks(topic, *partition, TIMEOUT)
            .with_context(|| format!("the end offset of {topic}/{partition} is not known"))?;
        (found.start_offset, found.end_offset) = (Some(start), Some(end));
    }
    serve_events(&client);
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_committed_offset_the_whole_log_is_ahead() {
        let progress = Progress { committed: None, start_offset: Some(10), end_offset: Some(15) };
        assert_eq!(progress.lag(), Some(5));
        assert_eq!(Progress { committed: Some(12), ..progress }.lag(), Some(3));
        assert_eq!(Progress::default().lag(), None);
    }
}
