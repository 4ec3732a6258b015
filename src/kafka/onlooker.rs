//! What Kafka says of the source topic and of the group, asked again and again for the page: end offsets, members.
//!
//! A client and a thread of its own, so that neither the worker's consumer nor its runtime waits for an answer. It
//! never joins the group.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::groups::GroupInfo;
use rdkafka::metadata::MetadataPartition;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Asking, KafkaSetupError, asking_config, lock};
use super::ends::serve_events;
use crate::config::KafkaConfig;

/// How long the brokers may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between two questions for the end offsets.
const ENDS: Duration = Duration::from_millis(400);
/// Between two questions for the group's members.
const MEMBERS: Duration = Duration::from_secs(1);
/// Between two questions for the topic's partitions.
const PARTITIONS: Duration = Duration::from_secs(15);
/// Between two looks whether it is time for anything.
const LOOK: Duration = Duration::from_millis(100);

/// What Kafka said last. What it never said is `None`; what it said before it went away stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaView {
    /// The end offset of each partition of the source topic.
    pub ends: BTreeMap<i32, i64>,
    /// Counts the answers about end offsets.
    pub answers: u64,
    /// Who is in the group.
    pub members: Option<Vec<Member>>,
    /// Why the last question has no answer; `None`: it has one.
    pub error: Option<String>,
}

/// One member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name in the group, given by the coordinator.
    pub id: String,
    /// Where it connected from.
    pub host: String,
    /// Partitions of the source topic that it is assigned.
    pub partitions: Vec<i32>,
}

/// Asks until it is dropped.
#[derive(Debug)]
pub struct Onlooker {
    view: Arc<Mutex<KafkaView>>,
    stop: Arc<AtomicBool>,
}

impl Onlooker {
    /// Starts asking.
    pub fn start(kafka: &KafkaConfig) -> Result<Onlooker, KafkaSetupError> {
        let client: BaseConsumer<Asking> = asking_config(kafka)
            .set("isolation.level", "read_uncommitted")
            .create_with_context(Asking::default())
            .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
        let (view, stop) = (Arc::new(Mutex::new(KafkaView::default())), Arc::new(AtomicBool::new(false)));
        let asker = Asker {
            client,
            topic: kafka.topic.clone(),
            group: kafka.group.clone(),
            view: Arc::clone(&view),
            stop: Arc::clone(&stop),
        };
        thread::spawn(move || asker.run());
        Ok(Onlooker { view, stop })
    }

    /// What Kafka said last.
    pub fn view(&self) -> KafkaView {
        lock(&self.view).clone()
    }
}

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Asker {
    client: BaseConsumer<Asking>,
    topic: String,
    group: String,
    view: Arc<Mutex<KafkaView>>,
    stop: Arc<AtomicBool>,
}

impl Asker {
    fn run(self) {
        let (mut partitions_at, mut ends_at, mut members_at) = (None, None, None);
        let due = |at: &mut Option<Instant>, every: Duration| {
            let is = at.is_none_or(|at| at.elapsed() >= every);
            if is {
                *at = Some(Instant::now());
            }
            is
        };
        let mut partitions = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            if due(&mut partitions_at, PARTITIONS) {
                match self.partitions() {
                    Ok(found) => partitions = found,
                    Err(reason) => self.fail(reason),
                }
            }
            if !partitions.is_empty() && due(&mut ends_at, ENDS) {
                match self.ends(&partitions) {
                    Ok(ends) => {
                        let mut view = lock(&self.view);
                        view.ends = ends;
                        view.answers += 1;
                        view.error = None;
                    }
                    Err(reason) => self.fail(reason),
                }
            }
            if due(&mut members_at, MEMBERS)
                && let Ok(members) = self.members()
            {
                lock(&self.view).members = Some(members);
            }
            if partitions.is_empty() {
                partitions_at = None;
            }
            serve_events(&self.client);
            thread::sleep(LOOK);
        }
    }

    fn fail(&self, reason: String) {
        lock(&self.view).error = Some(self.client.context().last_error().unwrap_or(reason));
    }

    fn partitions(&self) -> Result<Vec<i32>, String> {
        let metadata = self.client.fetch_metadata(Some(&self.topic), TIMEOUT).map_err(|e| e.to_string())?;
        let found = metadata.topics().iter().find(|found| found.name() == self.topic);
        let partitions: Vec<i32> =
            found.map_or(Vec::new(), |topic| topic.partitions().iter().map(MetadataPartition::id).collect());
        if partitions.is_empty() {
            return Err(format!("there is no topic {}; create it, or correct [kafka] topic", self.topic));
        }
        Ok(partitions)
    }

    /// The ends of all partitions by one question a broker: a time of -1 asks for the end.
    fn ends(&self, partitions: &[i32]) -> Result<BTreeMap<i32, i64>, String> {
        let mut asked = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            asked.add_partition_offset(&self.topic, *partition, Offset::End).map_err(|e| e.to_string())?;
        }
        let found = self.client.offsets_for_times(asked, TIMEOUT).map_err(|e| e.to_string())?;
        found
            .elements()
            .iter()
            .map(|element| {
                element.error().map_err(|e| e.to_string())?;
                match element.offset() {
                    Offset::Offset(end) => Ok((element.partition(), end)),
                    _ => Err(format!("the end of {}/{} is not known", self.topic, element.partition())),
                }
            })
            .collect()
    }

    fn members(&self) -> Result<Vec<Member>, String> {
        let groups = self.client.fetch_group_list(Some(&self.group), TIMEOUT).map_err(|e| e.to_string())?;
        let members = groups.groups().iter().flat_map(GroupInfo::members);
        Ok(members
            .map(|member| Member {
                id: member.id().to_owned(),
                host: member.client_host().trim_start_matches('/').to_owned(),
                partitions: member.assignment().map_or(Vec::new(), |bytes| assigned(bytes, &self.topic)),
            })
            .collect())
    }
}

/// The partitions of `topic` in a member's assignment: version, then topics with their partitions, all big-endian.
/// What is cut short holds none.
fn assigned(bytes: &[u8], topic: &str) -> Vec<i32> {
    fn number<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (head, rest) = bytes.split_first_chunk::<N>()?;
        *bytes = rest;
        Some(*head)
    }
    fn read(mut bytes: &[u8], topic: &str) -> Option<Vec<i32>> {
        number::<2>(&mut bytes)?;
        let topics = i32::from_be_bytes(number(&mut bytes)?);
        let mut partitions = Vec::new();
        for _ in 0..topics {
            let length = i16::from_be_bytes(number(&mut bytes)?);
            let (name, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
            bytes = rest;
            for _ in 0..i32::from_be_bytes(number(&mut bytes)?) {
                let partition = i32::from_be_bytes(number(&mut bytes)?);
                if name == topic.as_bytes() {
                    partitions.push(partition);
                }
            }
        }
        Some(partitions)
    }
    read(bytes, topic).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_by_topic_and_one_cut_short_is_none() {
        let mut bytes = vec![0, 0, 0, 0, 0, 2];
        bytes.extend([0, 1, b't', 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7]);
        bytes.extend([0, 1, b'u', 0, 0, 0, 1, 0, 0, 0, 3]);
        bytes.extend([0, 0, 0, 0]); // user data
        assert_eq!(assigned(&bytes, "t"), [0, 7]);
        assert_eq!(assigned(&bytes, "u"), [3]);
        assert_eq!(assigned(&bytes[..12], "t"), [0; 0]);
        assert_eq!(assigned(&[], "t"), [0; 0]);
    }
}
