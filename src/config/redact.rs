//! What may be printed: the configuration without its secrets.

use std::collections::BTreeMap;
use std::fmt;

use super::{Config, KafkaConfig, RedisConfig, Scalar};

/// What stands in place of a secret.
pub(super) const MASK: &str = "***";

/// Parts of librdkafka's names whose values are secrets, such as `sasl.password` and `ssl.key.pem`.
const SECRET_NAMES: [&str; 5] = ["password", "secret", "ssl.key.pem", "sasl.jaas", "sasl.oauthbearer.config"];

/// `url` with user and password masked: `redis://***@host:6379/0`.
pub fn mask_url(url: &str) -> String {
    let masked = match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}{MASK}{}", &url[..scheme + 3], &url[at..])
        }
        _ => url.to_owned(),
    };
    mask_parameter(&masked, "pass=")
}

/// Masks a query parameter: a unix socket's URL carries its password as `?pass=…`.
fn mask_parameter(url: &str, name: &str) -> String {
    let Some(start) = url.find(name).map(|at| at + name.len()) else { return url.to_owned() };
    let end = url[start..].find('&').map_or(url.len(), |length| start + length);
    format!("{}{MASK}{}", &url[..start], &url[end..])
}

fn mask_settings(settings: &BTreeMap<String, Scalar>) -> BTreeMap<String, Scalar> {
    let is_secret = |name: &str| SECRET_NAMES.iter().any(|part| name.contains(part));
    let masked = |(name, value): (&String, &Scalar)| {
        (name.clone(), if is_secret(name) { Scalar(MASK.into()) } else { value.clone() })
    };
    settings.iter().map(masked).collect()
}

impl Config {
    /// The same configuration with every secret masked, for people to read.
    #[must_use]
    pub fn redacted(&self) -> Config {
        Config { redis: self.redis.redacted(), kafka: self.kafka.redacted(), ..self.clone() }
    }
}

impl RedisConfig {
    fn redacted(&self) -> RedisConfig {
        RedisConfig { url: mask_url(&self.url), ..self.clone() }
    }
}

impl KafkaConfig {
    fn redacted(&self) -> KafkaConfig {
        KafkaConfig {
            consumer: mask_settings(&self.consumer),
            producer: mask_settings(&self.producer),
            ..self.clone()
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RedisConfig {
            url,
            sentinels,
            master,
            username,
            password,
            db,
            sentinel_username,
            sentinel_password,
            response_timeout,
        } = self.redacted();
        f.debug_struct("RedisConfig")
            .field("url", &url)
            .field("sentinels", &sentinels)
            .field("master", &master)
            .field("username", &username)
            .field("password", &password)
            .field("db", &db)
            .field("sentinel_username", &sentinel_username)
            .field("sentinel_password", &sentinel_password)
            .field("response_timeout", &response_timeout)
            .finish()
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaConfig { brokers, group, topic, processing_guarantee, consumer, producer } = self.redacted();
        f.debug_struct("KafkaConfig")
            .field("brokers", &brokers)
            .field("group", &group)
            .field("topic", &topic)
            .field("processing_guarantee", &processing_guarantee)
            .field("consumer", &consumer)
            .field("producer", &producer)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_of_a_url_are_masked() {
        for (url, masked) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://:hunter2@db:6379/1", "redis://***@db:6379/1"),
            ("redis://user:p@ss/w0rd@db:6379", "redis://***@db:6379"),
            ("redis+unix:///run/redis.sock?db=2&pass=hunter2", "redis+unix:///run/redis.sock?db=2&pass=***"),
            ("unix:///run/redis.sock?pass=hunter2&user=me", "unix:///run/redis.sock?pass=***&user=me"),
        ] {
            assert_eq!(mask_url(url), masked);
        }
    }

    #[test]
    fn no_secret_reaches_debug_or_the_redacted_form() {
        let mut config = Config::default();
        config.redis.url = "redis://me:hunter2@db:6379".into();
        for settings in [&mut config.kafka.consumer, &mut config.kafka.producer] {
            for name in ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "ssl.key.pem"] {
                settings.insert(name.into(), Scalar("hunter2".into()));
            }
        }
        let shown = toml::to_string(&config.redacted()).unwrap();
        for text in [format!("{config:?}"), format!("{:#?}", config.redis), shown] {
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains("***"));
        }
    }
}
