//! How every Kafka client is configured: what users pass through, and what the protocol does not let them change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::config::{KafkaConfig, PassedThrough};

/// What the consumer must be, whatever the user passes through.
///
/// `auto.offset.reset = error`: a position outside the log is for the recovery policies to decide, never for the
/// client. `enable.partition.eof`: the end of the log is evidence that time may pass.
const CONSUMER_FIXED: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("isolation.level", "read_committed"),
    ("enable.partition.eof", "true"),
    ("auto.offset.reset", "error"),
    ("partition.assignment.strategy", "cooperative-sticky"),
    ("group.protocol", "classic"),
];

/// Defaults of the consumer.
///
/// `fetch.queue.backoff.ms`: the usual 1 s stalls a consumer whose local queue was full. `fetch.wait.max.ms`: a
/// partition that starts, or goes on after a pause, waits for the fetch under way, and with the other partitions
/// quiet the broker holds that one so long (usually 500 ms). `queued.min.messages`: read ahead, a partition; a
/// pause throws it away, so the usual 100,000 would be fetched several times over while the worker is behind.
/// `heartbeat.interval.ms`: a member hears of a rebalance by the answer to its next heartbeat, so that is what a
/// takeover waits for beside the session timeout (usually 3 s). `topic.metadata.refresh.interval.ms`: so long may added
/// partitions wait until somebody reads them (usually 5 min).
const CONSUMER_DEFAULTS: &[(&str, &str)] = &[
    ("fetch.queue.backoff.ms", "10"),
    ("fetch.wait.max.ms", "100"),
    ("queued.min.messages", "10000"),
    ("session.timeout.ms", "6000"),
    ("heartbeat.interval.ms", "100"),
    ("topic.metadata.refresh.interval.ms", "30000"),
];

/// What every producer must be. The partitioner is the Java client's default, so that a key's outputs are where
/// other programs put that key's records.
const PRODUCER_FIXED: &[(&str, &str)] =
    &[("enable.idempotence", "true"), ("acks", "all"), ("partitioner", "murmur2_random")];

/// Defaults of producers.
///
/// `linger.ms`: outputs come in batches already, and share requests as far as that goes; the usual 5 ms would be most
/// of what an alert takes. `message.max.bytes`: how large a record may be is for the output topic to say
/// (`max.message.bytes`); the client's own limit is below the broker's, and would refuse dead letters that the source
/// topic took.
const PRODUCER_DEFAULTS: &[(&str, &str)] =
    &[("linger.ms", "0"), ("compression.type", "lz4"), ("message.max.bytes", "1000000000")];

/// Keys that other settings decide, with the name of that setting.
const ELSEWHERE: &[(&str, &str)] = &[
    ("bootstrap.servers", "kafka.brokers"),
    ("metadata.broker.list", "kafka.brokers"),
    ("group.id", "kafka.group"),
    ("transactional.id", "kafka.group"),
];

/// Other names under which librdkafka takes a fixed key.
const ALIASES: &[(&str, &str)] = &[("request.required.acks", "acks"), ("auto.commit.enable", "enable.auto.commit")];

/// Families of keys that say whom to trust and who one is. Every client of a worker says the same, so they have one
/// place: half of the clients logged in would be found out late.
const OF_ALL_CLIENTS: &[&str] = &["security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https."];

/// A Kafka client that cannot be made as configured.
#[derive(Debug, thiserror::Error)]
pub enum KafkaSetupError {
    /// The key belongs to the protocol.
    #[error("kafka.{section}: {key:?} cannot be set: tickwatch depends on {key} = {fixed}; remove the line")]
    Fixed {
        /// `client`, `consumer` or `producer`.
        section: &'static str,
        /// The key.
        key: String,
        /// Its fixed value.
        fixed: &'static str,
    },
    /// The key is decided by another setting.
    #[error("kafka.{section}: {key:?} cannot be set here; set {setting} instead")]
    Elsewhere {
        /// `client`, `consumer` or `producer`.
        section: &'static str,
        /// The key.
        key: String,
        /// The setting to use.
        setting: &'static str,
    },
    /// librdkafka does not know the key or refuses the value. The value is not told: the key may be a password's, with
    /// a letter missing.
    #[error("kafka.{section}: {key} is refused: {reason}; correct or remove the line")]
    Refused {
        /// `client`, `consumer` or `producer`.
        section: &'static str,
        /// The key.
        key: String,
        /// librdkafka's words.
        reason: String,
    },
    /// The client could not be made for another reason.
    #[error("a Kafka {section} for {brokers} could not be made: {reason}; check [kafka] in the configuration")]
    Create {
        /// `client`, `consumer` or `producer`.
        section: &'static str,
        /// The brokers it was for.
        brokers: String,
        /// librdkafka's words.
        reason: String,
    },
}

impl KafkaSetupError {
    /// From the error of making a client.
    pub(super) fn of(section: &'static str, kafka: &KafkaConfig, error: KafkaError) -> KafkaSetupError {
        match error {
            KafkaError::ClientConfig(_, reason, key, _) => {
                let own = if section == "consumer" { &kafka.consumer } else { &kafka.producer };
                let section = if own.contains_key(&key) { section } else { "client" };
                Self::Refused { section, key, reason }
            }
            other => Self::Create { section, brokers: kafka.brokers.clone(), reason: other.to_string() },
        }
    }
}

/// For the member of the group.
pub(super) fn consumer_config(kafka: &KafkaConfig) -> Result<ClientConfig, KafkaSetupError> {
    let mut config = layered("consumer", kafka, CONSUMER_DEFAULTS, &kafka.consumer, CONSUMER_FIXED)?;
    config.set("group.id", &kafka.group);
    Ok(config)
}

/// For a producer without transactions; the transactional one adds its own.
pub(crate) fn producer_config(kafka: &KafkaConfig) -> Result<ClientConfig, KafkaSetupError> {
    layered("producer", kafka, PRODUCER_DEFAULTS, &kafka.producer, PRODUCER_FIXED)
}

/// Whether what users pass through is allowed, known to librdkafka and of the right form. Connects to nothing.
pub fn check(kafka: &KafkaConfig) -> Result<(), KafkaSetupError> {
    for (section, config) in [("consumer", consumer_config(kafka)?), ("producer", producer_config(kafka)?)] {
        config.create_native_config().map_err(|error| KafkaSetupError::of(section, kafka, error))?;
    }
    Ok(())
}

/// Where the brokers are. Clients tell at least what is of interest, whatever the log shows: why a broker is away is
/// read out of those lines.
fn of_any_client(kafka: &KafkaConfig) -> ClientConfig {
    let mut config = ClientConfig::new();
    if !matches!(config.log_level, RDKafkaLogLevel::Debug) {
        config.set_log_level(RDKafkaLogLevel::Info);
    }
    config.set("bootstrap.servers", &kafka.brokers);
    config
}

/// For a client that only asks: how every client reaches the brokers, and nothing else.
pub(super) fn asking_config(kafka: &KafkaConfig) -> ClientConfig {
    let mut config = of_any_client(kafka);
    for (key, value) in kafka.client.iter() {
        config.set(key, &value.0);
    }
    config
}

fn layered(
    section: &'static str,
    kafka: &KafkaConfig,
    defaults: &[(&str, &str)],
    own: &PassedThrough,
    fixed: &'static [(&str, &str)],
) -> Result<ClientConfig, KafkaSetupError> {
    let mut config = of_any_client(kafka);
    for (key, value) in defaults {
        config.set(*key, *value);
    }
    for (section, settings) in [("client", &kafka.client), (section, own)] {
        for (key, value) in settings.iter() {
            check_user_key(section, key, &value.0, fixed)?;
            config.set(key, &value.0);
        }
    }
    for (key, value) in fixed {
        config.set(*key, *value);
    }
    Ok(config)
}

/// Saying what is fixed anyway is allowed: it hurts nobody.
fn check_user_key(
    section: &'static str,
    key: &str,
    value: &str,
    fixed: &'static [(&str, &str)],
) -> Result<(), KafkaSetupError> {
    if let Some((_, setting)) = ELSEWHERE.iter().find(|(name, _)| *name == key) {
        return Err(KafkaSetupError::Elsewhere { section, key: key.into(), setting });
    }
    if section != "client" && OF_ALL_CLIENTS.iter().any(|family| key.starts_with(family)) {
        return Err(KafkaSetupError::Elsewhere { section, key: key.into(), setting: "[kafka.client]" });
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| name);
    match fixed.iter().find(|(fixed_key, _)| *fixed_key == name) {
        Some((_, fixed)) if *fixed != value => Err(KafkaSetupError::Fixed { section, key: key.into(), fixed }),
        _ => Ok(()),
    }
}

/// The context of a client that only asks: its log lines go to tracing, its last error is kept for messages.
#[derive(Default)]
pub(super) struct Asking {
    last_error: Mutex<Option<String>>,
}

impl Asking {
    /// The last error librdkafka reported, such as a refused connection.
    pub(super) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }
}

impl ClientContext for Asking {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        // A broker that hangs up, as one does that expects TLS, is in the log only.
        if fac == "FAIL" {
            lock(&self.last_error).get_or_insert_with(|| message.to_owned());
        }
        log_line(level, fac, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, reason, "client error");
        // That all brokers are down comes after why each of them is.
        let mut last = lock(&self.last_error);
        if last.is_none() || error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *last = Some(reason.to_owned());
        }
    }
}

impl rdkafka::consumer::ConsumerContext for Asking {}

/// What to look at when no broker answers, by librdkafka's words.
pub(super) fn next_step(reason: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if says(&["SASL authentication error", "Authentication failed"]) {
        "check sasl.username and sasl.password in [kafka.client] (TICKWATCH_KAFKA__CLIENT__SASL_PASSWORD), and sasl.mechanisms"
    } else if says(&["certificate verify failed", "ssl.ca.location"]) {
        "check ssl.ca.location in [kafka.client]: it has to be the authority of the brokers' certificates, which have to carry the names in kafka.brokers"
    } else if says(&["security.protocol", "SSL handshake", "ApiVersion", "Disconnected"]) {
        "check security.protocol in [kafka.client]: it has to be that of the brokers' listener; and kafka.brokers"
    } else {
        "start the broker, or set kafka.brokers (TICKWATCH_KAFKA__BROKERS)"
    }
}

/// A line of librdkafka's log, to tracing.
pub(crate) fn log_line(level: RDKafkaLogLevel, fac: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::error!(target: "librdkafka", fac, "{message}");
        }
        RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", fac, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", fac, "{message}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", fac, "{message}"),
    }
}

/// A lock whose holder panicked still guards whole data here: every critical section writes it in one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Scalar;

    fn with_consumer(key: &str, value: &str) -> KafkaConfig {
        let mut kafka = KafkaConfig::default();
        kafka.consumer.insert(key.into(), Scalar(value.into()));
        kafka
    }

    #[test]
    fn a_users_setting_replaces_a_default() {
        let config = consumer_config(&with_consumer("session.timeout.ms", "9000")).unwrap();
        assert_eq!(config.get("session.timeout.ms"), Some("9000"));
    }

    #[test]
    fn librdkafka_judges_names_and_values() {
        check(&KafkaConfig::default()).unwrap();
        let error = check(&with_consumer("sesion.timeout.ms", "6000")).unwrap_err();
        assert!(error.to_string().contains("sesion.timeout.ms"), "{error}");
        let mut kafka = KafkaConfig::default();
        kafka.producer.insert("linger.ms".into(), Scalar("soon".into()));
        assert!(matches!(check(&kafka), Err(KafkaSetupError::Refused { section: "producer", .. })));
    }

    #[test]
    fn what_the_protocol_depends_on_cannot_be_overridden() {
        let error = consumer_config(&with_consumer("enable.auto.commit", "true")).unwrap_err();
        assert!(error.to_string().contains("enable.auto.commit"), "{error}");
        assert!(consumer_config(&with_consumer("auto.commit.enable", "true")).is_err(), "an alias");
        assert!(consumer_config(&with_consumer("enable.auto.commit", "false")).is_ok(), "the fixed value");
    }

    #[test]
    fn a_key_decided_elsewhere_names_the_setting() {
        let error = consumer_config(&with_consumer("group.id", "other")).unwrap_err();
        assert!(error.to_string().contains("kafka.group"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let kafka = with_consumer("sesion.timeout.ms", "9000");
        let made: Result<rdkafka::consumer::BaseConsumer, _> = consumer_config(&kafka).unwrap().create();
        let error = KafkaSetupError::of("consumer", &kafka, made.err().unwrap());
        assert!(error.to_string().contains("sesion.timeout.ms"), "{error}");
    }

    #[test]
    fn what_all_clients_share_is_said_once_and_reaches_each() {
        let mut kafka = KafkaConfig::default();
        kafka.client.insert("security.protocol".into(), Scalar("SASL_SSL".into()));
        kafka.consumer.insert("session.timeout.ms".into(), Scalar("9000".into()));
        for config in [consumer_config(&kafka).unwrap(), producer_config(&kafka).unwrap(), asking_config(&kafka)] {
            assert_eq!(config.get("security.protocol"), Some("SASL_SSL"));
        }
        assert_eq!(asking_config(&kafka).get("session.timeout.ms"), None);
        let error = consumer_config(&with_consumer("sasl.username", "me")).unwrap_err();
        assert!(error.to_string().contains("set [kafka.client] instead"), "{error}");
    }

    #[test]
    fn a_bad_setting_of_all_clients_is_told_with_its_section_and_without_its_value() {
        let with_client = |key: &str, value: &str| {
            let mut kafka = KafkaConfig::default();
            kafka.client.insert(key.into(), Scalar(value.into()));
            check(&kafka).unwrap_err().to_string()
        };
        assert!(with_client("security.protocl", "SSL").contains("kafka.client: security.protocl"));
        assert!(with_client("enable.auto.commit", "true").contains("tickwatch depends on"));
        let told = with_client("sasl.pasword", "7331");
        assert!(told.contains("sasl.pasword") && !told.contains("7331"), "{told}");
    }
}
