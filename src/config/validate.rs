//! What one setting demands of another. Every message says what to change.
//!
//! What is passed through to librdkafka is judged by [`crate::kafka::client::check`], a mapping by
//! [`crate::input::Decoder::new`]: they know.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo as _};

use super::formats::text_of;
use super::{Config, ConfigError, DEFAULT_REDIS_URL, Emit, LatePolicy, Scalar, mask_url};

/// Used where `[kafka.consumer]` does not say otherwise, ms.
const SESSION_TIMEOUT_MS: i64 = 6_000;
const HEARTBEAT_INTERVAL_MS: i64 = 100;
const MAX_POLL_INTERVAL_MS: i64 = 300_000;

/// Below this, updates of candles cost more than all the rest.
const LEAST_UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// Kafka's bound on a topic's name, bytes.
const MAX_TOPIC_NAME: usize = 249;

/// Problems found so far.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn unless(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.0.push(message());
        }
    }
}

impl Config {
    /// Checks what the types cannot: all problems at once, each with what to change.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.check_redis(&mut problems);
        self.check_topics(&mut problems);
        self.check_kafka(&mut problems);
        self.check_candles(&mut problems);
        self.check_updates(&mut problems);
        self.check_bounds(&mut problems);
        if problems.0.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems.0)) }
    }

    /// What may be meant but is often a mistake. Logged at start, printed by `config check`.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Problems::default();
        let candles = &self.candles;
        warnings.unless(!candles.lateness.is_zero(), || {
            "[candles] lateness is 0: every tick older than its partition's newest is late for the windows that one closed"
                .into()
        });
        warnings.unless(self.input.max_future.is_none_or(|future| future <= candles.lateness), || {
            let (future, lateness) =
                (self.input.max_future.map(text_of).unwrap_or_default(), text_of(candles.lateness));
            format!(
                "[input] max_future ({future}) is longer than [candles] lateness ({lateness}): one sender with a fast clock makes everyone else late"
            )
        });
        self.warn_of_open_doors(&mut warnings);
        warnings.unless(self.output.notifications != self.output.candles, || {
            format!(
                "[output] notifications and candles are one topic, {:?}: readers must tell the records apart",
                self.output.notifications
            )
        });
        warnings.0
    }

    /// A certificate that is not checked, a password that anyone on the way can read.
    fn warn_of_open_doors(&self, warnings: &mut Problems) {
        let says = |name: &str, value: &str| {
            self.kafka.client.get(name).is_some_and(|found| found.0.eq_ignore_ascii_case(value))
        };
        warnings.unless(!says("enable.ssl.certificate.verification", "false"), || {
            "[kafka.client] enable.ssl.certificate.verification is false: whoever answers is taken for the broker and given the password; set ssl.ca.location instead".into()
        });
        warnings.unless(!says("ssl.endpoint.identification.algorithm", "none"), || {
            "[kafka.client] ssl.endpoint.identification.algorithm is none: any certificate of a trusted authority is taken for the broker's".into()
        });
        let plain = ["sasl.mechanisms", "sasl.mechanism"].iter().any(|name| says(name, "PLAIN"));
        warnings.unless(!(plain && says("security.protocol", "sasl_plaintext")), || {
            "[kafka.client] sasl.mechanisms is PLAIN without TLS: the password can be read on the way; set security.protocol to SASL_SSL, or use SCRAM-SHA-512".into()
        });
    }

    fn check_redis(&self, problems: &mut Problems) {
        let namespace = &self.namespace;
        problems.unless(!namespace.is_empty(), || {
            "namespace is empty; it is the prefix of every Redis key, such as \"tw:\"".into()
        });
        problems.unless(!namespace.contains(|c: char| c.is_whitespace() || c.is_control()), || {
            format!("namespace {namespace:?} holds whitespace or control characters; write one such as \"tw:\"")
        });
        problems.unless(!self.redis.response_timeout.is_zero(), || {
            "[redis] response_timeout is 0; write how long a reply may take, such as \"5s\"".into()
        });
        if self.redis.sentinels.is_empty() {
            self.check_single_redis(problems);
        } else {
            self.check_sentinels(problems);
        }
    }

    fn check_single_redis(&self, problems: &mut Problems) {
        let redis = &self.redis;
        let info = match redis.url.as_str().into_connection_info() {
            Ok(info) => info,
            Err(e) => {
                return problems.0.push(format!(
                    "[redis] url {:?} cannot be used ({e}); write redis://[user:password@]host:port[/db]",
                    mask_url(&redis.url)
                ));
            }
        };
        let with_tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => {
                problems.unless(!insecure, || {
                    "[redis] url ends in #insecure, which trusts whoever answers; remove it, and name the authority's certificate in tls_ca_file".into()
                });
                true
            }
            _ => false,
        };
        problems.unless(with_tls || !redis.tls, || {
            "[redis] tls is set, but url is without TLS; write it as rediss://host:port".into()
        });
        self.check_tls_files(with_tls, problems);
        let login = info.redis_settings();
        let twice = [
            ("username", login.username().is_some() && redis.username.is_some()),
            ("password", login.password().is_some() && redis.password.is_some()),
            ("db", login.db() != 0 && redis.db.is_some()),
        ];
        for (setting, _) in twice.iter().filter(|(_, twice)| *twice) {
            problems.0.push(format!("[redis] {setting} is also part of url; say it in one place"));
        }
        let of_sentinel = [
            ("master", redis.master.is_some()),
            ("sentinel_username", redis.sentinel_username.is_some()),
            ("sentinel_password", redis.sentinel_password.is_some()),
        ];
        for (setting, _) in of_sentinel.iter().filter(|(_, set)| *set) {
            problems.0.push(format!(
                "[redis] {setting} is for a Redis under Sentinel, and sentinels is empty; list them, such as [\"10.0.0.1:26379\"]"
            ));
        }
    }

    fn check_tls_files(&self, with_tls: bool, problems: &mut Problems) {
        let redis = &self.redis;
        let files = [
            ("tls_ca_file", redis.tls_ca_file.is_some()),
            ("tls_cert_file", redis.tls_cert_file.is_some()),
            ("tls_key_file", redis.tls_key_file.is_some()),
        ];
        for (setting, _) in files.iter().filter(|(_, set)| *set && !with_tls) {
            problems.0.push(format!(
                "[redis] {setting} is set, but the connection is without TLS; write url as rediss://host:port, or with sentinels tls = true"
            ));
        }
        problems.unless(redis.tls_cert_file.is_some() == redis.tls_key_file.is_some(), || {
            "[redis] tls_cert_file and tls_key_file go together; set both or neither".into()
        });
    }

    fn check_sentinels(&self, problems: &mut Problems) {
        let redis = &self.redis;
        self.check_tls_files(redis.tls, problems);
        problems.unless(redis.url == DEFAULT_REDIS_URL, || {
            "[redis] url and sentinels are both set; sentinels say where the primary is: remove url".into()
        });
        problems.unless(redis.master.as_ref().is_some_and(|name| !name.is_empty()), || {
            "[redis] sentinels are set, but not master: write the name under which they know the primary, such as \"mymaster\"".into()
        });
        for address in &redis.sentinels {
            problems.unless(host_and_port(address).is_some(), || {
                format!("[redis] sentinels: {address:?} is no address; write host:port, such as \"10.0.0.1:26379\"")
            });
        }
    }

    fn check_topics(&self, problems: &mut Problems) {
        let source = &self.kafka.topic;
        let (dead_letters, late) = (self.dead_letter_topic(), self.late_topic());
        let outputs = [
            ("[output] notifications", &self.output.notifications),
            ("[output] candles", &self.output.candles),
            ("[output] dead_letters", &dead_letters),
            ("[output] late", &late),
        ];
        for (setting, topic) in [("[kafka] topic", source)].into_iter().chain(outputs) {
            problems.unless(is_topic(topic), || {
                format!("{setting} {topic:?} is no topic name; use up to {MAX_TOPIC_NAME} of a-z A-Z 0-9 . _ -")
            });
        }
        for (setting, topic) in outputs {
            problems.unless(topic != source, || {
                format!("{setting} is the source topic {source:?}: the service would read what it writes; name another topic")
            });
        }
    }

    fn check_kafka(&self, problems: &mut Problems) {
        let kafka = &self.kafka;
        problems.unless(!kafka.group.is_empty(), || "[kafka] group is empty; name the consumer group".into());
        problems.unless(kafka.brokers.split(',').all(|broker| !broker.trim().is_empty()), || {
            format!("[kafka] brokers {:?} is no list; write host:port, several separated by commas", kafka.brokers)
        });
        self.check_session(problems);
    }

    fn check_session(&self, problems: &mut Problems) {
        let ms = |name, default| number(&self.kafka.consumer, name).unwrap_or(default);
        let session = ms("session.timeout.ms", SESSION_TIMEOUT_MS);
        let heartbeat = ms("heartbeat.interval.ms", HEARTBEAT_INTERVAL_MS.min(session / 2));
        let poll = ms("max.poll.interval.ms", MAX_POLL_INTERVAL_MS);
        problems.unless(heartbeat * 2 <= session, || {
            format!(
                "[kafka.consumer] heartbeat.interval.ms ({heartbeat}) must be at most half of session.timeout.ms ({session}), or one lost heartbeat costs the partitions"
            )
        });
        problems.unless(session <= poll, || {
            format!("[kafka.consumer] session.timeout.ms ({session}) must be at most max.poll.interval.ms ({poll})")
        });
        problems.unless(self.worker.stop_deadline.as_millis() < poll.unsigned_abs().into(), || {
            format!(
                "[worker] stop_deadline ({}) must be shorter than [kafka.consumer] max.poll.interval.ms ({poll}), or the group gives the partitions away while they are still being finished",
                text_of(self.worker.stop_deadline)
            )
        });
    }

    fn check_candles(&self, problems: &mut Problems) {
        let candles = &self.candles;
        let keep = candles.keep;
        problems.unless(keep >= candles.lateness, || {
            format!("[candles] keep ({}) must be at least lateness ({})", text_of(keep), text_of(candles.lateness))
        });
        problems.unless(!keep.is_zero(), || {
            "[candles] keep is 0; closed candles expire after twice this, write one such as \"24h\"".into()
        });
        let longest = candles.intervals.iter().max_by_key(|interval| interval.ms());
        if let (LatePolicy::Revise, Some(longest)) = (candles.late, longest) {
            problems.unless(keep.as_millis() >= longest.ms().unsigned_abs().into(), || {
                format!(
                    "[candles] keep ({}) must be at least the longest interval ({longest}) under late = \"revise\", or a candle expires before its late ticks; raise keep or use late = \"drop\"",
                    text_of(keep)
                )
            });
        }
    }

    fn check_updates(&self, problems: &mut Problems) {
        let (output, candles) = (&self.output, &self.candles);
        problems.unless(output.update_interval >= LEAST_UPDATE_INTERVAL, || {
            format!(
                "[output] update_interval ({}) must be at least {}: it is a pause for all open candles of a partition",
                text_of(output.update_interval),
                text_of(LEAST_UPDATE_INTERVAL)
            )
        });
        problems.unless(output.emit == Emit::Final || !candles.intervals.is_empty(), || {
            "[output] emit is \"updates\", but [candles] intervals is empty: there is no candle to send; name intervals, or use emit = \"final\"".into()
        });
    }

    fn check_bounds(&self, problems: &mut Problems) {
        let worker = &self.worker;
        for (setting, value) in [
            ("[rules] max_matches", self.rules.max_matches),
            ("[worker] max_batch", worker.max_batch),
            ("[worker] max_symbols", worker.max_symbols),
            ("[worker] max_outputs", worker.max_outputs),
            ("[worker] max_undelivered", worker.max_undelivered),
            ("[worker] max_buffered", worker.max_buffered),
        ] {
            problems.unless(value > 0, || format!("{setting} must be at least 1"));
        }
        for (setting, value) in [
            ("[input] max_record_bytes", self.input.max_record_bytes),
            ("[input] max_record_ticks", self.input.max_record_ticks),
        ] {
            problems.unless(value != Some(0), || format!("{setting} must be at least 1"));
        }
        problems.unless(!worker.heartbeat.is_zero(), || {
            "[worker] heartbeat is 0; write how often an idle owner looks whether it still is one, such as \"1s\""
                .into()
        });
        problems.unless(worker.max_outputs <= worker.max_undelivered, || {
            format!(
                "[worker] max_outputs ({}) must be at most max_undelivered ({}), or one batch would never fit",
                worker.max_outputs, worker.max_undelivered
            )
        });
        problems.unless(self.rules.max_matches <= worker.max_outputs, || {
            format!(
                "[rules] max_matches ({}) must be at most [worker] max_outputs ({}): one tick may fire that many rules, and a record is never cut",
                self.rules.max_matches, worker.max_outputs
            )
        });
    }
}

/// `host:port` taken apart; an IPv6 address has its brackets off.
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'))?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty() && !host.contains(|c: char| c == '/' || c == '@' || c.is_whitespace()))
        .then_some((host, port))
}

/// Whether the broker would take this as a topic's name.
fn is_topic(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=MAX_TOPIC_NAME).contains(&name.len()) && name.chars().all(legal) && name != "." && name != ".."
}

fn number(settings: &BTreeMap<String, Scalar>, name: &str) -> Option<i64> {
    settings.get(name)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of the default configuration changed by `change`.
    fn problems(change: impl FnOnce(&mut Config)) -> Vec<String> {
        let mut config = Config::default();
        change(&mut config);
        match config.validate() {
            Ok(()) => Vec::new(),
            Err(ConfigError::Invalid(problems)) => problems,
            Err(e) => panic!("{e}"),
        }
    }

    fn only_problem(change: impl FnOnce(&mut Config)) -> String {
        let problems = problems(change);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.into_iter().next().unwrap()
    }

    fn set(settings: &mut BTreeMap<String, Scalar>, name: &str, value: &str) {
        settings.insert(name.into(), Scalar(value.into()));
    }

    #[test]
    fn the_defaults_have_neither_problems_nor_warnings() {
        assert_eq!(problems(|_| ()), Vec::<String>::new());
        assert_eq!(Config::default().warnings(), Vec::<String>::new());
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let found = problems(|c| {
            c.namespace = String::new();
            c.worker.max_batch = 0;
            c.kafka.group = String::new();
        });
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn an_output_topic_cannot_be_the_source_topic() {
        let problem = only_problem(|c| c.output.candles = c.kafka.topic.clone());
        assert!(problem.starts_with("[output] candles is the source topic \"market-updates\""), "{problem}");
        assert!(only_problem(|c| c.output.late = Some("a b".into())).contains("no topic name"));
    }

    #[test]
    fn keep_reaches_over_the_lateness_and_under_revise_over_the_longest_interval() {
        let hour = std::time::Duration::from_hours(1);
        assert!(
            only_problem(|c| c.candles.lateness = 25 * hour).contains("keep (24h) must be at least lateness (25h)")
        );
        let weekly = |c: &mut Config| c.candles.intervals = vec!["1s".parse().unwrap(), "1w".parse().unwrap()];
        assert_eq!(problems(weekly), Vec::<String>::new());
        let problem = only_problem(|c| {
            weekly(c);
            c.candles.late = LatePolicy::Revise;
        });
        assert!(problem.contains("longest interval (1w)"), "{problem}");
    }

    #[test]
    fn a_password_in_a_bad_redis_url_is_not_told() {
        let problem = only_problem(|c| c.redis.url = "http://me:hunter2@db".into());
        assert!(problem.contains("http://***@db") && !problem.contains("hunter2"), "{problem}");
    }

    #[test]
    fn sentinels_take_the_place_of_a_url_and_need_a_masters_name() {
        let under_sentinel = |c: &mut Config| {
            c.redis.sentinels = vec!["10.0.0.1:26379".into(), "[::1]:26379".into(), "sentinel.local:26379".into()];
            c.redis.master = Some("mymaster".into());
            c.redis.sentinel_password = Some("hunter2".into());
        };
        assert_eq!(problems(under_sentinel), Vec::<String>::new());
        let changed = |change: fn(&mut Config)| {
            only_problem(|c| {
                under_sentinel(c);
                change(c);
            })
        };
        assert!(changed(|c| c.redis.url = "redis://db:6379".into()).contains("remove url"));
        assert!(changed(|c| c.redis.master = None).contains("not master"));
        for bad in ["10.0.0.1", ":26379", "10.0.0.1:0", "redis://10.0.0.1:26379", "user@10.0.0.1:26379"] {
            let problem = only_problem(|c| {
                under_sentinel(c);
                c.redis.sentinels.push(bad.into());
            });
            assert!(problem.contains("write host:port"), "{problem}");
        }
        let alone = problems(|c| {
            under_sentinel(c);
            c.redis.sentinels.clear();
        });
        assert!(
            alone.len() == 2 && alone.iter().all(|problem| problem.contains("sentinels is empty")),
            "{alone:?}"
        );
    }

    #[test]
    fn the_check_of_certificates_cannot_be_turned_off_for_redis_and_not_silently_for_kafka() {
        let problem = only_problem(|c| c.redis.url = "rediss://db:6379#insecure".into());
        assert!(problem.contains("tls_ca_file"), "{problem}");
        let mut config = Config::default();
        for (name, value) in [
            ("enable.ssl.certificate.verification", "false"),
            ("ssl.endpoint.identification.algorithm", "none"),
            ("sasl.mechanism", "PLAIN"),
            ("security.protocol", "SASL_PLAINTEXT"),
        ] {
            set(&mut config.kafka.client, name, value);
        }
        assert_eq!(config.warnings().len(), 3, "{:?}", config.warnings());
    }

    #[test]
    fn tls_settings_without_tls_are_no_protection_and_are_refused() {
        assert!(only_problem(|c| c.redis.tls = true).contains("rediss://"));
        assert!(only_problem(|c| c.redis.tls_ca_file = Some("ca.pem".into())).contains("without TLS"));
        let over_tls = |c: &mut Config| c.redis.url = "rediss://db".into();
        assert_eq!(problems(over_tls), Vec::<String>::new());
        let problem = only_problem(|c| {
            over_tls(c);
            c.redis.tls_key_file = Some("key.pem".into());
        });
        assert!(problem.contains("go together"), "{problem}");
    }

    #[test]
    fn a_login_is_said_in_one_place() {
        for (url, change) in [
            ("redis://me@db", (|c| c.redis.username = Some("me".into())) as fn(&mut Config)),
            ("redis://:hunter2@db", |c| c.redis.password = Some("hunter3".into())),
            ("redis://db/3", |c| c.redis.db = Some(3)),
        ] {
            let problem = only_problem(|c| {
                c.redis.url = url.into();
                change(c);
            });
            assert!(problem.ends_with("say it in one place") && !problem.contains("hunter"), "{problem}");
            assert_eq!(problems(change), Vec::<String>::new());
        }
    }

    #[test]
    fn a_heartbeat_fits_twice_into_the_session() {
        let problem = only_problem(|c| {
            set(&mut c.kafka.consumer, "session.timeout.ms", "6000");
            set(&mut c.kafka.consumer, "heartbeat.interval.ms", "4000");
        });
        assert!(problem.contains("heartbeat.interval.ms (4000)"), "{problem}");
    }

    #[test]
    fn open_candles_need_a_pause_between_them_and_an_interval() {
        let often = only_problem(|config| config.output.update_interval = Duration::from_millis(99));
        assert!(often.contains("update_interval (99ms) must be at least 100ms"), "{often}");
        let nothing = only_problem(|config| {
            config.output.emit = Emit::Updates;
            config.candles.intervals.clear();
        });
        assert!(nothing.contains("intervals is empty"), "{nothing}");
        let least = problems(|config| {
            config.output.emit = Emit::Updates;
            config.output.update_interval = Duration::from_millis(100);
        });
        assert_eq!(least, Vec::<String>::new());
    }

    #[test]
    fn one_ticks_notifications_fit_into_one_batch() {
        assert!(only_problem(|c| c.rules.max_matches = 10_001).contains("a record is never cut"));
    }
}
