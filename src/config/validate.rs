//! What one setting demands of another. Every message says what to change.
//!
//! What is passed through to librdkafka is judged by [`crate::kafka::client::check`], a mapping by
//! [`crate::input::Decoder::new`]: they know.

use std::collections::BTreeMap;

use super::formats::text_of;
use super::{Config, ConfigError, LatePolicy, Scalar, mask_url};

/// Used where `[kafka.consumer]` does not say otherwise, ms.
const SESSION_TIMEOUT_MS: i64 = 6_000;
const HEARTBEAT_INTERVAL_MS: i64 = 100;
const MAX_POLL_INTERVAL_MS: i64 = 300_000;

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
        warnings.unless(self.output.notifications != self.output.candles, || {
            format!(
                "[output] notifications and candles are one topic, {:?}: readers must tell the records apart",
                self.output.notifications
            )
        });
        warnings.0
    }

    fn check_redis(&self, problems: &mut Problems) {
        let namespace = &self.namespace;
        problems.unless(!namespace.is_empty(), || {
            "namespace is empty; it is the prefix of every Redis key, such as \"tw:\"".into()
        });
        problems.unless(!namespace.contains(|c: char| c.is_whitespace() || c.is_control()), || {
            format!("namespace {namespace:?} holds whitespace or control characters; write one such as \"tw:\"")
        });
        if let Err(e) = redis::IntoConnectionInfo::into_connection_info(self.redis.url.as_str()) {
            problems.0.push(format!(
                "[redis] url {:?} cannot be used ({e}); write redis://[user:password@]host:port[/db]",
                mask_url(&self.redis.url)
            ));
        }
        problems.unless(!self.redis.response_timeout.is_zero(), || {
            "[redis] response_timeout is 0; write how long a reply may take, such as \"5s\"".into()
        });
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

    fn check_bounds(&self, problems: &mut Problems) {
        let worker = &self.worker;
        for (setting, value) in [
            ("[rules] max_matches", self.rules.max_matches),
            ("[worker] max_batch", worker.max_batch),
            ("[worker] max_outputs", worker.max_outputs),
            ("[worker] max_undelivered", worker.max_undelivered),
            ("[worker] max_buffered", worker.max_buffered),
        ] {
            problems.unless(value > 0, || format!("{setting} must be at least 1"));
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
    fn a_heartbeat_fits_twice_into_the_session() {
        let problem = only_problem(|c| {
            set(&mut c.kafka.consumer, "session.timeout.ms", "6000");
            set(&mut c.kafka.consumer, "heartbeat.interval.ms", "4000");
        });
        assert!(problem.contains("heartbeat.interval.ms (4000)"), "{problem}");
    }

    #[test]
    fn one_ticks_notifications_fit_into_one_batch() {
        assert!(only_problem(|c| c.rules.max_matches = 10_001).contains("a record is never cut"));
    }
}
