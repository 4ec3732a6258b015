//! Reads a whole topic as its consumers would see it: for the demo, and for looking at outputs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::client::asking_config;
use crate::config::KafkaConfig;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A record, as far as a reader of outputs cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputRecord {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
}

/// Every committed record of `topic` from its start to its present end, partition by partition. Blocks.
pub fn read_to_end(kafka: &KafkaConfig, topic: &str) -> anyhow::Result<Vec<OutputRecord>> {
    let consumer: BaseConsumer = asking_config(kafka)
        .set("group.id", "tickwatch-reader") // librdkafka wants one to assign; nothing is committed to it
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "false")
        .create()
        .context("a consumer could not be made")?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions = metadata.topics().first().map_or(0, |found| found.partitions().len()) as i32;
    let mut assignment = TopicPartitionList::new();
    let mut left = 0;
    let mut ends = Vec::new();
    for partition in 0..partitions {
        let (start, end) = consumer.fetch_watermarks(topic, partition, TIMEOUT)?;
        ends.push(end);
        if end > start {
            assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
            left += 1;
        }
    }
    consumer.assign(&assignment)?;
    let mut records = Vec::new();
    let mut done = vec![false; ends.len()];
    let deadline = Instant::now() + TIMEOUT;
    while left > 0 {
        if Instant::now() > deadline {
            bail!("topic {topic} could not be read to its end within {TIMEOUT:?}");
        }
        if let Some(message) = consumer.poll(Duration::from_millis(50)) {
            let message = message?;
            records.push(OutputRecord {
                partition: message.partition(),
                offset: message.offset(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
            });
        }
        // By position, not by the last record: the end may lie behind control records.
        let positions = consumer.position()?;
        for element in positions.elements() {
            let number = element.partition() as usize;
            if let Offset::Offset(at) = element.offset()
                && at >= ends[number]
                && !done[number]
            {
                done[number] = true;
                left -= 1;
            }
        }
    }
    Ok(records)
}
