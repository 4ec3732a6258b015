//! Plain Kafka clients of the harness, all with the same settings: nothing waits to be sent together.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::common::PATIENCE;
use crate::common::kafka::Isolation;

/// Sends at once.
pub(crate) struct Sender {
    producer: ThreadedProducer<DefaultProducerContext>,
    topic: String,
}

impl Sender {
    pub(crate) fn new(brokers: &str, topic: &str) -> anyhow::Result<Sender> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .set("partitioner", "murmur2_random")
            .create()?;
        Ok(Sender { producer, topic: topic.to_owned() })
    }

    /// Hands a record over; waits while the queue is full.
    pub(crate) fn send(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let mut record = BaseRecord::to(&self.topic).key(key).payload(value);
        while let Err((error, refused)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(anyhow!("send to {}: {error}", self.topic));
            }
            std::thread::sleep(Duration::from_millis(5));
            record = refused;
        }
        Ok(())
    }
}

/// The next offset of a partition. A broker that has just made a topic may say for a moment that it does not lead it.
pub(crate) fn end_of(consumer: &BaseConsumer, topic: &str, partition: i32) -> anyhow::Result<i64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match consumer.fetch_watermarks(topic, partition, PATIENCE) {
            Ok((_, end)) => return Ok(end),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context(format!("the end of {topic}/{partition}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Reads all partitions of a topic as a member of no group.
pub(crate) struct Reader {
    consumer: BaseConsumer,
    topic: String,
    partitions: usize,
}

impl Reader {
    pub(crate) fn from_beginning(brokers: &str, topic: &str, isolation: Isolation) -> anyhow::Result<Reader> {
        Reader::new(brokers, topic, isolation, |_, _| Ok(Offset::Beginning))
    }

    /// Reads what comes from now on.
    pub(crate) fn from_now_on(brokers: &str, topic: &str, isolation: Isolation) -> anyhow::Result<Reader> {
        Reader::new(brokers, topic, isolation, |consumer, partition| {
            Ok(Offset::Offset(end_of(consumer, topic, partition)?))
        })
    }

    fn new(
        brokers: &str,
        topic: &str,
        isolation: Isolation,
        begin: impl Fn(&BaseConsumer, i32) -> anyhow::Result<Offset>,
    ) -> anyhow::Result<Reader> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "reader-without-a-group")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", isolation.setting())
            .create()?;
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
        let mut assignment = TopicPartitionList::new();
        for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
            assignment.add_partition_offset(topic, partition.id(), begin(&consumer, partition.id())?)?;
        }
        if assignment.count() == 0 {
            bail!("there is no topic {topic}");
        }
        consumer.assign(&assignment)?;
        Ok(Reader { consumer, topic: topic.to_owned(), partitions: assignment.count() })
    }

    /// Gives each value to `take` until that says that it is enough. It is also asked without a value: at each end of a
    /// partition and each time nothing came. It is told whether every partition is at its end.
    pub(crate) fn read(
        &self,
        mut take: impl FnMut(Option<&[u8]>, bool) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut ends = BTreeSet::new();
        loop {
            let all_read = ends.len() == self.partitions;
            let enough = match self.consumer.poll(Duration::from_millis(100)) {
                None => take(None, all_read)?,
                Some(Ok(message)) => {
                    ends.remove(&message.partition());
                    take(message.payload(), false)?
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    ends.insert(partition);
                    take(None, ends.len() == self.partitions)?
                }
                Some(Err(error)) => return Err(error).context(format!("read topic {}", self.topic)),
            };
            if enough {
                return Ok(());
            }
        }
    }
}
