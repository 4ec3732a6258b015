//! Topics: the check at start-up, and making them for the demo, tests and load.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::client::{self, Asking, KafkaSetupError, asking_config};
use super::ends::serve_events;
use crate::config::{Config, KafkaConfig, LatePolicy};

const TIMEOUT: Duration = Duration::from_secs(5);

/// What a topic is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicRole {
    /// Ticks come from it.
    Source,
    /// Notifications go to it.
    Notifications,
    /// Candles go to it.
    Candles,
    /// Records that could not be used go to it.
    DeadLetters,
    /// Late ticks go to it, under `late = "divert"`.
    Late,
}

impl TopicRole {
    /// Partitions to suggest.
    fn partitions(self) -> u32 {
        match self {
            TopicRole::DeadLetters | TopicRole::Late => 1,
            TopicRole::Source | TopicRole::Notifications | TopicRole::Candles => 8,
        }
    }
}

impl fmt::Display for TopicRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopicRole::Source => "source",
            TopicRole::Notifications => "notifications",
            TopicRole::Candles => "candles",
            TopicRole::DeadLetters => "dead letters",
            TopicRole::Late => "late ticks",
        })
    }
}

/// What is wrong with the brokers or the topics.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// The client's configuration.
    #[error(transparent)]
    Setup(#[from] KafkaSetupError),
    /// No broker answered.
    #[error("no Kafka broker answers at {brokers}: {reason}; {}", client::next_step(.reason))]
    Unreachable {
        /// The configured addresses.
        brokers: String,
        /// The last thing that failed.
        reason: String,
    },
    /// Topics are missing; the text holds the command for each.
    #[error("{}", missing_text(.0))]
    Missing(Vec<MissingTopic>),
    /// A topic that cannot be looked at, or made.
    #[error("topic {topic}: {reason}; check its name and this user's rights (kafka-acls.sh --list)")]
    Topic {
        /// The topic.
        topic: String,
        /// The broker's words.
        reason: String,
    },
}

/// A topic that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTopic {
    /// Its name.
    pub topic: String,
    /// What it is for.
    pub role: TopicRole,
    /// The command that makes it.
    pub command: String,
}

fn missing_text(missing: &[MissingTopic]) -> String {
    let names: Vec<_> = missing.iter().map(|m| format!("{} ({})", m.topic, m.role)).collect();
    let commands: Vec<_> = missing.iter().map(|m| format!("  {}", m.command)).collect();
    format!("these topics are missing: {}; create them:\n{}", names.join(", "), commands.join("\n"))
}

/// The topics that a worker with this configuration reads and writes.
pub fn required(config: &Config) -> Vec<(String, TopicRole)> {
    let mut topics = vec![
        (config.kafka.topic.clone(), TopicRole::Source),
        (config.output.notifications.clone(), TopicRole::Notifications),
        (config.output.candles.clone(), TopicRole::Candles),
        (config.dead_letter_topic(), TopicRole::DeadLetters),
    ];
    if config.candles.late == LatePolicy::Divert {
        topics.push((config.late_topic(), TopicRole::Late));
    }
    topics
}

/// Whether a broker answers and every topic is there. Takes up to 5 s if none answers.
pub async fn check(kafka: &KafkaConfig, topics: &[(&str, TopicRole)]) -> Result<(), TopicError> {
    let kafka = kafka.clone();
    let topics: Vec<_> = topics.iter().map(|(name, role)| ((*name).to_owned(), *role)).collect();
    blocking(move || check_blocking(&kafka, &topics)).await
}

fn check_blocking(kafka: &KafkaConfig, topics: &[(String, TopicRole)]) -> Result<(), TopicError> {
    let client: BaseConsumer<Asking> = asking_config(kafka)
        .create_with_context(Asking::default())
        .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
    let mut missing = Vec::new();
    for (topic, role) in topics {
        let metadata = client.fetch_metadata(Some(topic), TIMEOUT).map_err(|error| {
            serve_events(&client);
            let reason = client.context().last_error().unwrap_or_else(|| error.to_string());
            TopicError::Unreachable { brokers: kafka.brokers.clone(), reason }
        })?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        match found.map(|found| found.error().map(RDKafkaErrorCode::from)) {
            Some(None) => {}
            None | Some(Some(RDKafkaErrorCode::UnknownTopicOrPartition)) => {
                missing.push(missing_topic(kafka, topic, *role, metadata.brokers().len()));
            }
            Some(Some(error)) => {
                return Err(TopicError::Topic { topic: topic.clone(), reason: error.to_string() });
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(TopicError::Missing(missing)) }
}

fn missing_topic(kafka: &KafkaConfig, topic: &str, role: TopicRole, brokers: usize) -> MissingTopic {
    let command = format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions {} --replication-factor {}",
        kafka.brokers,
        role.partitions(),
        brokers.clamp(1, 3),
    );
    MissingTopic { topic: topic.to_owned(), role, command }
}

/// Makes a topic with the cluster's default replication; one that is there already is left as it is. Returns when
/// the brokers know it.
pub async fn create(kafka: &KafkaConfig, name: &str, partitions: i32) -> Result<(), TopicError> {
    let failed = |reason: String| TopicError::Topic { topic: name.to_owned(), reason };
    let admin: AdminClient<Asking> = asking_config(kafka)
        .create_with_context(Asking::default())
        .map_err(|error| KafkaSetupError::of("consumer", kafka, error))?;
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(-1));
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
    let results = admin.create_topics([&topic], &options).await.map_err(|error| match error {
        KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut | RDKafkaErrorCode::BrokerTransportFailure) => {
            TopicError::Unreachable { brokers: kafka.brokers.clone(), reason: error.to_string() }
        }
        other => failed(other.to_string()),
    })?;
    for result in results {
        match result {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((_, error)) => return Err(failed(error.to_string())),
        }
    }
    let admin = Arc::new(admin);
    blocking(move || {
        drop(admin); // joins its thread
        Ok(())
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TopicError> + Send + 'static,
) -> Result<T, TopicError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_broker_is_named_with_the_next_step() {
        let kafka = KafkaConfig { brokers: "127.0.0.1:1".into(), ..KafkaConfig::default() };
        let error = check(&kafka, &[("t", TopicRole::Source)]).await.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("kafka.brokers"), "{error}");
    }

    #[test]
    fn a_missing_topic_comes_with_its_command() {
        let kafka = KafkaConfig::default();
        let missing = missing_topic(&kafka, "market-updates", TopicRole::Source, 5);
        let text = TopicError::Missing(vec![missing]).to_string();
        let command = "kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --create --topic market-updates \
                       --partitions 8 --replication-factor 3";
        assert!(text.contains(command), "{text}");
    }
}
