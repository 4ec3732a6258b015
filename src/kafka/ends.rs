//! The log's start and end, asked through a client of its own: asking through a busy consumer takes half a second.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataPartition;

use super::client::{Asking, KafkaSetupError, asking_config};
use crate::config::KafkaConfig;
use crate::domain::Offset;

const TIMEOUT: Duration = Duration::from_secs(2);

/// What the log of a partition holds: `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRange {
    /// Offset of the oldest record still there.
    pub start: Offset,
    /// Offset the next record will get, records of open transactions counted.
    pub end: Offset,
}

/// Asks for end offsets. Cheap to clone; questions may be asked at the same time.
#[derive(Clone)]
pub struct Ends {
    topic: Arc<str>,
    client: Arc<BaseConsumer<Asking>>,
}

/// The broker did not answer. Then nothing is known, and nothing may be concluded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {name} is not known: {reason}; asked again while the partition waits")]
pub struct EndsError {
    what: &'static str,
    /// `topic` or `topic/partition`.
    name: String,
    reason: String,
}

impl Ends {
    /// A client for the source topic.
    pub fn new(kafka: &KafkaConfig) -> Result<Ends, KafkaSetupError> {
        // Records of open transactions are hidden from read_committed readers, but they are there: an end that
        // leaves them out would let time pass them by.
        let client = asking_config(kafka)
            .set("isolation.level", "read_uncommitted")
            .create_with_context(Asking::default())
            .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
        Ok(Ends { topic: kafka.topic.as_str().into(), client: Arc::new(client) })
    }

    /// Where the partition's log starts and ends now. Takes up to 6 s.
    pub async fn ends(&self, partition: i32) -> Result<LogRange, EndsError> {
        let topic = Arc::clone(&self.topic);
        let (start, end) = self
            .ask("the end offset", format!("{topic}/{partition}"), move |client| {
                let ask = || client.fetch_watermarks(&topic, partition, TIMEOUT);
                match ask() {
                    // Added since this client looked at the topic: it would look again after minutes.
                    Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition) => {
                        client.fetch_metadata(Some(&topic), TIMEOUT)?;
                        ask()
                    }
                    answer => answer,
                }
            })
            .await?;
        Ok(LogRange { start: Offset(start), end: Offset(end) })
    }

    /// The topic's partitions. Takes up to 2 s.
    pub async fn partitions(&self) -> Result<Vec<i32>, EndsError> {
        let topic = Arc::clone(&self.topic);
        self.ask("the number of partitions", topic.to_string(), move |client| {
            let metadata = client.fetch_metadata(Some(&topic), TIMEOUT)?;
            let found = metadata.topics().iter().find(|found| found.name() == &*topic);
            Ok(found.map_or(Vec::new(), |topic| topic.partitions().iter().map(MetadataPartition::id).collect()))
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        name: String,
        question: impl FnOnce(&BaseConsumer<Asking>) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, EndsError> {
        let client = Arc::clone(&self.client);
        let asked = tokio::task::spawn_blocking(move || {
            serve_events(&client);
            question(&client).map_err(|error| error.to_string())
        });
        let answer = asked.await.unwrap_or_else(|error| Err(error.to_string()));
        answer.map_err(|reason| EndsError { what, name, reason })
    }
}

/// Nobody else polls this client; its log lines would pile up.
pub(super) fn serve_events(client: &BaseConsumer<Asking>) {
    for _ in 0..64 {
        let _ = client.poll(Duration::ZERO); // errors went to the context
    }
}
