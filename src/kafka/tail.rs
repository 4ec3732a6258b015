//! The newest records of a topic as they come, for the page: read from the end, nothing is committed, no group joined.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Asking, KafkaSetupError, asking_config, lock};
use crate::config::KafkaConfig;

const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the brokers may hold a fetch, and so how late a stop is noticed.
const WAIT: Duration = Duration::from_millis(100);
/// Between two tries to find the topic.
const RETRY: Duration = Duration::from_millis(500);
/// Most keys counted.
const MAX_KEYS: usize = 20_000;

/// A record that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Counts the records seen, from 1 on.
    pub number: u64,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Arc<[u8]>,
    /// Its time, ms.
    pub timestamp: i64,
}

#[derive(Debug, Default)]
struct Records {
    newest: VecDeque<Kept>,
    seen: u64,
    by_key: HashMap<String, u64>,
}

/// Follows a topic until it is dropped.
#[derive(Debug)]
pub struct Tail {
    records: Arc<Mutex<Records>>,
    stop: Arc<AtomicBool>,
}

impl Tail {
    /// Starts at the last `keep` records, and keeps as many.
    pub fn start(kafka: &KafkaConfig, topic: &str, keep: usize) -> Result<Tail, KafkaSetupError> {
        let consumer: BaseConsumer<Asking> = asking_config(kafka)
            .set("group.id", "tickwatch-page") // librdkafka wants one to assign; nothing is committed to it
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "latest")
            .set("fetch.wait.max.ms", WAIT.as_millis().to_string())
            .set("queued.max.messages.kbytes", "4096")
            .create_with_context(Asking::default())
            .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
        let (records, stop) = (Arc::new(Mutex::new(Records::default())), Arc::new(AtomicBool::new(false)));
        let reader = Reader {
            consumer,
            topic: topic.to_owned(),
            keep,
            records: Arc::clone(&records),
            stop: Arc::clone(&stop),
        };
        thread::spawn(move || reader.run());
        Ok(Tail { records, stop })
    }

    /// What came after the record numbered `after`: the newest `most` of it, oldest first, and how many were seen in all.
    pub fn since(&self, after: u64, most: usize) -> (Vec<Kept>, u64) {
        let records = lock(&self.records);
        let new = records.newest.iter().rev().take_while(|kept| kept.number > after).take(most);
        let mut new: Vec<Kept> = new.cloned().collect();
        new.reverse();
        (new, records.seen)
    }

    /// How many records of each of these keys were seen.
    pub fn counts<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Vec<u64> {
        let records = lock(&self.records);
        keys.into_iter().map(|key| records.by_key.get(key).copied().unwrap_or_default()).collect()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Reader {
    consumer: BaseConsumer<Asking>,
    topic: String,
    keep: usize,
    records: Arc<Mutex<Records>>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    fn run(self) {
        while !self.stop.load(Ordering::Relaxed) && !self.assign() {
            thread::sleep(RETRY);
        }
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(Ok(message)) = self.consumer.poll(WAIT) {
                self.keep(&message);
            }
        }
    }

    /// Whether the topic was found.
    fn assign(&self) -> bool {
        let Ok(metadata) = self.consumer.fetch_metadata(Some(&self.topic), TIMEOUT) else { return false };
        let Some(topic) = metadata.topics().iter().find(|found| found.name() == self.topic) else { return false };
        let partitions = topic.partitions();
        let mut assignment = TopicPartitionList::with_capacity(partitions.len());
        let back = (self.keep / partitions.len().max(1)) as i64;
        for partition in partitions {
            let added = assignment.add_partition_offset(&self.topic, partition.id(), Offset::OffsetTail(back));
            if added.is_err() {
                return false;
            }
        }
        !partitions.is_empty() && self.consumer.assign(&assignment).is_ok()
    }

    fn keep(&self, message: &impl Message) {
        let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
        let mut records = lock(&self.records);
        records.seen += 1;
        if records.by_key.len() < MAX_KEYS || records.by_key.contains_key(&key) {
            *records.by_key.entry(key.clone()).or_default() += 1;
        }
        if records.newest.len() == self.keep {
            records.newest.pop_front();
        }
        let kept = Kept {
            number: records.seen,
            key,
            value: message.payload().unwrap_or_default().into(),
            timestamp: message.timestamp().to_millis().unwrap_or_default(),
        };
        records.newest.push_back(kept);
    }
}
