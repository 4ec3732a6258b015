//! Topics and records: made with acknowledgements, read up to the end offsets.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::metadata::{MetadataPartition, MetadataTopic};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{PATIENCE, wait_until};

/// A record to produce.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub(crate) key: Option<String>,
    pub(crate) value: String,
    /// Chosen by the key (murmur2, the Java default) if not given.
    pub(crate) partition: Option<i32>,
    /// ms; now if not given.
    pub(crate) timestamp: Option<i64>,
    pub(crate) headers: Vec<(String, String)>,
}

impl<K: Into<String>, V: Into<String>> From<(K, V)> for Message {
    fn from((key, value): (K, V)) -> Message {
        Message { key: Some(key.into()), value: value.into(), ..Message::default() }
    }
}

/// A record read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// ms; -1 if there is none.
    pub(crate) timestamp: i64,
    pub(crate) key: Option<String>,
    pub(crate) value: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Record {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value as JSON.
    pub(crate) fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_str(&self.value).with_context(|| format!("no JSON: {}", self.value))
    }
}

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Only what was committed.
    ReadCommitted,
    /// Open and aborted transactions too.
    ReadUncommitted,
}

/// Makes a topic and waits until each partition has a leader.
pub(crate) async fn create_topic(brokers: &str, name: &str, partitions: i32) -> anyhow::Result<()> {
    create_topics(brokers, &[NewTopic::new(name, partitions, TopicReplication::Fixed(1))]).await
}

/// Makes topics and waits until each partition has a leader.
pub(crate) async fn create_topics(brokers: &str, topics: &[NewTopic<'_>]) -> anyhow::Result<()> {
    const TRIES: u32 = 3;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE / TRIES));
    let mut admin: AdminClient<DefaultClientContext> = client_config(brokers).create()?;
    let mut answer = admin.create_topics(topics, &options).await;
    let mut tried = 1;
    // A client that met a broker in its first moment may never learn of a controller; another one does.
    while tried < TRIES && matches!(&answer, Err(error) if is_timeout(error)) {
        admin = client_config(brokers).create()?;
        answer = admin.create_topics(topics, &options).await;
        tried += 1;
    }
    for made in answer? {
        match made {
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) if tried > 1 => {} // the try before was not in vain
            made => drop(made.map_err(|(topic, code)| anyhow::anyhow!("make topic {topic}: {code}"))?),
        }
    }
    topics.iter().try_for_each(|topic| wait_for_leaders(&admin, topic.name, topic.num_partitions))
}

/// Waits until a topic has so many partitions, each with a leader.
pub(crate) fn wait_for_leaders(
    admin: &AdminClient<DefaultClientContext>,
    name: &str,
    partitions: i32,
) -> anyhow::Result<()> {
    wait_until(PATIENCE, &format!("leaders of topic {name}"), || {
        admin.inner().fetch_metadata(Some(name), PATIENCE).is_ok_and(|metadata| {
            metadata.topics().iter().any(|topic| {
                topic.partitions().len() == partitions as usize
                    && topic.partitions().iter().all(|partition| partition.leader() >= 0)
            })
        })
    })
}

/// A client that asks for what a group has committed, and is no member of it.
pub(crate) fn group_reader(brokers: &str, group: &str) -> anyhow::Result<BaseConsumer> {
    Ok(client_config(brokers).set("group.id", group).set("isolation.level", "read_committed").create()?)
}

/// The committed offset of each partition asked for; -1 where there is none.
pub(crate) fn committed(
    group: &BaseConsumer,
    topic: &str,
    partitions: impl IntoIterator<Item = i32>,
    patience: Duration,
) -> anyhow::Result<BTreeMap<i32, i64>> {
    let mut asked = TopicPartitionList::new();
    for number in partitions {
        asked.add_partition(topic, number);
    }
    let found = group.committed_offsets(asked, patience)?;
    let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { -1 };
    Ok(found.elements().iter().map(|element| (element.partition(), offset(element.offset()))).collect())
}

/// Produces records in order and waits until all are acknowledged. Returns their partitions and offsets.
pub(crate) async fn produce<M: Into<Message>>(
    brokers: &str,
    topic: &str,
    messages: impl IntoIterator<Item = M>,
) -> anyhow::Result<Vec<(i32, i64)>> {
    send_all(&producer(brokers)?, topic, messages).await
}

/// One producer a broker for all tests: a new one takes half a second to begin.
fn producer(brokers: &str) -> anyhow::Result<FutureProducer> {
    static PRODUCERS: Mutex<BTreeMap<String, FutureProducer>> = Mutex::new(BTreeMap::new());
    let mut producers = PRODUCERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(producer) = producers.get(brokers) {
        return Ok(producer.clone());
    }
    let producer: FutureProducer = producer_config(brokers).create()?;
    producers.insert(brokers.to_owned(), producer.clone());
    Ok(producer)
}

/// [`produce`], within one transaction that is committed or aborted.
pub(crate) async fn produce_transaction<M: Into<Message>>(
    brokers: &str,
    transactional_id: &str,
    topic: &str,
    messages: impl IntoIterator<Item = M>,
    commit: bool,
) -> anyhow::Result<()> {
    let producer: FutureProducer = producer_config(brokers).set("transactional.id", transactional_id).create()?;
    producer.init_transactions(PATIENCE)?;
    producer.begin_transaction()?;
    send_all(&producer, topic, messages).await?;
    if commit {
        producer.commit_transaction(PATIENCE)?;
    } else {
        producer.abort_transaction(PATIENCE)?;
    }
    Ok(())
}

async fn send_all<M: Into<Message>>(
    producer: &FutureProducer,
    topic: &str,
    messages: impl IntoIterator<Item = M>,
) -> anyhow::Result<Vec<(i32, i64)>> {
    let mut deliveries = Vec::new();
    for message in messages {
        let message = message.into();
        loop {
            match producer.send_result(future_record(topic, &message)) {
                Ok(delivery) => break deliveries.push(delivery),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err((error, _)) => return Err(error).context(format!("produce to {topic}")),
            }
        }
    }
    let deliveries = try_join_all(deliveries).await.context("the producer was dropped")?;
    deliveries
        .into_iter()
        .map(|delivery| {
            let delivered = delivery.map_err(|(error, _)| error)?;
            Ok((delivered.partition, delivered.offset))
        })
        .collect()
}

fn future_record<'a>(topic: &'a str, message: &'a Message) -> FutureRecord<'a, String, String> {
    let headers = message
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }));
    let mut record = FutureRecord::to(topic).payload(&message.value).headers(headers);
    record.key = message.key.as_ref();
    record.partition = message.partition;
    record.timestamp = message.timestamp;
    record
}

/// Every record of a topic, each partition in offset order; none if there is no such topic.
pub(crate) fn consume_all(brokers: &str, topic: &str, isolation: Isolation) -> anyhow::Result<Vec<Record>> {
    let consumer: BaseConsumer = client_config(brokers)
        .set("group.id", "reader-without-a-group")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", isolation.setting())
        .create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in partitions(&consumer, topic)? {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    let mut reading = assignment.count();
    consumer.assign(&assignment)?;

    let mut records = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while reading > 0 {
        ensure!(Instant::now() < deadline, "topic {topic} was not read to its end within {PATIENCE:?}");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Ok(message)) => records.push(Record::from_kafka(&message)),
            Some(Err(KafkaError::PartitionEOF(_))) => reading -= 1,
            // A busy broker may drop a connection; the client makes another.
            Some(Err(error)) if is_transport(&error) => {}
            Some(Err(error)) => bail!("read topic {topic}: {error}"),
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    Ok(records)
}

fn is_timeout(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut)
}

fn is_transport(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure};
    matches!(error.rdkafka_error_code(), Some(AllBrokersDown | BrokerTransportFailure))
}

/// The partitions of a topic; none if it does not exist.
fn partitions(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<Vec<i32>> {
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    Ok(metadata.topics().iter().flat_map(MetadataTopic::partitions).map(MetadataPartition::id).collect())
}

impl Record {
    fn from_kafka(message: &rdkafka::message::BorrowedMessage<'_>) -> Record {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = message.headers().map(|headers| {
            headers
                .iter()
                .map(|header| (header.key.to_owned(), header.value.map(text).unwrap_or_default()))
                .collect()
        });
        Record {
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().unwrap_or(-1),
            key: message.key().map(text),
            value: message.payload().map(text).unwrap_or_default(),
            headers: headers.unwrap_or_default(),
        }
    }
}

impl Isolation {
    /// As clients are told it.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "read_committed",
            Isolation::ReadUncommitted => "read_uncommitted",
        }
    }
}

fn client_config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn producer_config(brokers: &str) -> ClientConfig {
    let mut config = client_config(brokers);
    config.set("partitioner", "murmur2_random").set("enable.idempotence", "true").set("linger.ms", "2");
    config.set("topic.metadata.refresh.interval.ms", "500"); // partitions come and go in tests
    config
}
