//! What may be printed. Serde and `Debug` write the configuration without its secrets, so that nothing else has to think
//! of them.

use std::fmt;

use serde::Serializer;

use super::RedisConfig;

/// What stands in place of a secret.
pub(super) const MASK: &str = "***";

/// Parts of names whose values are secrets, such as `sasl.password` and `ssl.key.pem`.
const SECRET_NAMES: [&str; 6] =
    ["password", "secret", "passphrase", "key.pem", "sasl.jaas", "sasl.oauthbearer.config"];

/// Ends of names whose values only say where a secret is.
const IS_FILE: [&str; 2] = ["_file", ".file"];

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

/// Whether a setting of this name, ours or librdkafka's, holds a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let holds = SECRET_NAMES.iter().any(|part| name.contains(part));
    holds && !IS_FILE.iter().any(|end| name.ends_with(end))
}

/// A URL as text, masked.
pub(super) fn url<S: Serializer>(url: &str, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&mask_url(url))
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = toml::Table::try_from(self).map_err(|_| fmt::Error)?;
        f.debug_tuple("RedisConfig").field(&table).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Scalar};

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
    fn no_secret_is_written_out() {
        let mut config = Config::default();
        config.redis.url = "redis://me:hunter2@db:6379".into();
        config.redis.sentinel_password = Some("hunter2".into());
        let kafka = &mut config.kafka;
        for settings in [&mut kafka.client, &mut kafka.consumer, &mut kafka.producer] {
            for name in ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "ssl.key.pem"] {
                settings.insert(name.into(), Scalar("hunter2".into()));
            }
        }
        let shown = toml::to_string(&config).unwrap();
        for text in [format!("{config:?}"), format!("{:#?}", config.redis), shown] {
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains("***"));
        }
    }
}
