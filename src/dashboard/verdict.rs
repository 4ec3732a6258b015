//! The first line of the page: whether it works, and if not, what holds it back, with the next step.
//!
//! Pure: the worst state of all partitions decides. Stopped comes first, then what lags, the largest lag first.

use serde::Serialize;

use super::partition::{Hold, Partition};
use super::words::{capitalised, counted, grouped, list, span, time};
use super::workers::{self, Life, Workers};

/// Most causes told one by one.
const MOST_CAUSES: usize = 5;

/// Redis or Kafka does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Away {
    /// When it last answered, ms; `None`: never since somebody looks.
    pub(super) since: Option<i64>,
    pub(super) address: String,
    pub(super) error: String,
    pub(super) tries: u32,
}

/// What the verdict is about.
#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub(super) now: i64,
    pub(super) topic: &'a str,
    pub(super) partitions: &'a [Partition],
    pub(super) workers: &'a Workers,
    pub(super) redis: Option<&'a Away>,
    pub(super) kafka: Option<&'a Away>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tone {
    Ok,
    /// Nothing is wrong and nothing has come yet.
    Wait,
    Warn,
    Stop,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) tone: Tone,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) causes: Vec<Cause>,
}

/// One reason, its consequence and its next step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Cause {
    /// The glyph: `stop`, `lag`, `dead`, `unk`, `ask`, `move`, `ok` or `quiet`.
    pub(super) glyph: &'static str,
    pub(super) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partition: Option<i32>,
    pub(super) word: String,
    pub(super) why: String,
    pub(super) detail: String,
    /// A command that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
}

impl Situation<'_> {
    pub(super) fn verdict(&self) -> Verdict {
        if let Some(redis) = self.redis {
            return self.redis_away(redis);
        }
        if let Some(kafka) = self.kafka {
            return kafka_away(kafka);
        }
        let claimed = self.partitions.iter().any(|partition| partition.owner.is_some());
        if self.workers.of(Life::Up).next().is_none() && self.workers.of(Life::Silent).next().is_none() {
            return self.no_worker(claimed);
        }
        if let Some(verdict) = self.takeover() {
            return verdict;
        }
        if self.partitions.iter().all(|partition| partition.ticks == Some(0) || partition.ticks.is_none()) {
            return self.first_tick();
        }
        self.working()
    }

    fn redis_away(&self, away: &Away) -> Verdict {
        let since = away
            .since
            .map_or_else(String::new, |since| format!("Since {}, {} ago. ", time(since), span(self.now - since)));
        let mut causes = vec![away.cause("redis-cli -u", "ping")];
        let bound: i64 = self.partitions.iter().filter_map(|partition| partition.lag).sum();
        if self.kafka.is_none() && self.partitions.iter().any(|partition| partition.lag.is_some()) {
            causes.push(Cause {
                glyph: "unk",
                what: "Waiting in Kafka".into(),
                partition: None,
                word: format!("At least {} records", grouped(bound)),
                why: ".".into(),
                detail: away.since.map_or_else(String::new, |since| {
                    format!("Ends of the log are live; positions are as of {}.", time(since))
                }),
                command: None,
            });
        }
        causes.extend(self.kafka.map(|kafka| kafka.cause("kafka-topics.sh --bootstrap-server", "--list")));
        Verdict {
            tone: Tone::Stop,
            title: "Standing still: Redis does not answer".into(),
            text: format!(
                "{since}Nothing is lost: positions move only together with Redis, and Kafka keeps the records for its \
                 retention. Workers go on by themselves when it is back."
            ),
            causes,
        }
    }

    fn no_worker(&self, claimed: bool) -> Verdict {
        let text = if claimed {
            "Everything is kept: positions and open candles in Redis, records in Kafka. The next worker goes on exactly \
             there."
        } else {
            "Redis and Kafka answer, and no partition was ever claimed in this namespace."
        };
        Verdict {
            tone: if claimed { Tone::Stop } else { Tone::Wait },
            title: if claimed { "Standing still: no worker is running" } else { "Ready for the first worker" }
                .into(),
            text: text.into(),
            causes: vec![Cause {
                glyph: "quiet",
                what: "Workers".into(),
                partition: None,
                word: "None".into(),
                why: format!(" of {} has an owner that is alive.", counted(self.partitions.len(), "partition")),
                detail: "Start as many as you like, with the same configuration:".into(),
                command: Some("tickwatch run".into()),
            }],
        }
    }

    /// A worker is gone and what it had moves, or moved a moment ago.
    fn takeover(&self) -> Option<Verdict> {
        let gone: Vec<_> = self.workers.of(Life::Gone).filter(|(_, worker)| !worker.lost.is_empty()).collect();
        let (name, worker) = gone.iter().max_by_key(|(_, worker)| worker.seen)?;
        let lost = worker.lost.len();
        let moved = worker.lost.values().filter(|to| to.is_some()).count();
        let last = self.workers.story.iter().filter(|line| line.kind == "moved").map(|line| line.at).max();
        if moved == lost && last.is_none_or(|last| self.now - last > workers::VERDICT) {
            return None;
        }
        let (title, progress) = if moved == lost {
            let have = if lost == 1 { "its partition has" } else { "its partitions have" };
            (format!("{name} is gone; {have} moved"), format!("All {lost} have a new owner"))
        } else {
            let are = if lost == 1 { "its partition is moving" } else { "are moving" };
            let title = if lost == 1 {
                format!("{name} is gone; {are}")
            } else {
                format!("{name} is gone; its {lost} partitions {are}")
            };
            (title, format!("{moved} of {lost} have a new owner"))
        };
        let others = self.partitions.len().saturating_sub(lost);
        let undisturbed = match others {
            0 => String::new(),
            others => format!(" The other {others} were not disturbed."),
        };
        Some(Verdict {
            tone: Tone::Warn,
            title,
            text: format!(
                "{}, which reads on from the stored position: nothing is counted twice or skipped.{undisturbed}",
                if lost == 1 && moved == 1 { "It has a new owner".to_owned() } else { progress }
            ),
            causes: Vec::new(),
        })
    }

    fn first_tick(&self) -> Verdict {
        let workers: Vec<String> = self
            .workers
            .of(Life::Up)
            .map(|(name, worker)| format!("{name} owns {} of {}", worker.partitions.len(), self.partitions.len()))
            .collect();
        let fact = |glyph, what: &str, why: String| Cause {
            glyph,
            what: what.into(),
            partition: None,
            word: String::new(),
            why,
            detail: String::new(),
            command: None,
        };
        let waiting: i64 = self.partitions.iter().filter_map(|partition| partition.end).sum();
        let records = if waiting == 0 { "all empty".to_owned() } else { format!("{} records", grouped(waiting)) };
        let topic = format!("topic {}, {}, {records}", self.topic, counted(self.partitions.len(), "partition"));
        Verdict {
            tone: Tone::Wait,
            title: "Ready, and waiting for the first tick".into(),
            text: "Everything is connected. No tick was applied yet; this page fills by itself when the first one comes."
                .into(),
            causes: vec![
                fact("ok", "Kafka", topic),
                fact("ok", "Redis", "answers, and holds the state of every partition".into()),
                fact("ok", "Workers", workers.join(", ")),
                fact("quiet", "Ticks", "none so far".into()),
            ],
        }
    }

    fn working(&self) -> Verdict {
        let mut held: Vec<&Partition> = self.partitions.iter().filter(|partition| partition.holds_back()).collect();
        held.sort_by_key(|p| (p.hold != Hold::Stopped, std::cmp::Reverse(p.lag), p.partition));
        let total = self.partitions.len();
        let upto = self.partitions.iter().filter(|p| !p.holds_back()).filter_map(|p| p.watermark).min();
        if held.is_empty() {
            return self.all_well(upto);
        }
        let rest = total - held.len();
        let first = match upto {
            Some(upto) if rest > 0 => {
                format!("The other {rest} keep up: every candle that ended by {} UTC is final. ", time(upto))
            }
            _ => String::new(),
        };
        let mut causes: Vec<Cause> = held.iter().take(MOST_CAUSES).map(|p| p.cause(self.topic, self.now)).collect();
        if let Some(more) = held.get(MOST_CAUSES..).filter(|more| !more.is_empty()) {
            let numbers: Vec<i32> = more.iter().map(|p| p.partition).collect();
            causes.push(Cause {
                glyph: "lag",
                what: format!("{} more", more.len()),
                partition: None,
                word: String::new(),
                why: format!("{}.", list(&numbers)),
                detail: String::new(),
                command: None,
            });
        }
        let verb = if held.len() == 1 { "holds" } else { "hold" };
        let none_works = rest == 0 && held.iter().all(|p| p.hold == Hold::Stopped);
        let title = match (held.len(), none_works) {
            (_, true) => "Standing still: every partition is stopped".to_owned(),
            (all, _) if rest == 0 => format!("Working; all {} {verb} candles back", counted(all, "partition")),
            (some, _) => format!("Working; {some} of {} {verb} candles back", counted(total, "partition")),
        };
        Verdict {
            tone: if none_works { Tone::Stop } else { Tone::Warn },
            title,
            text: format!("{first}A slow partition delays only its own symbols."),
            causes,
        }
    }

    fn all_well(&self, upto: Option<i64>) -> Verdict {
        let total = self.partitions.len();
        let quiet = self.partitions.iter().all(|partition| partition.hold == Hold::Quiet);
        let title = match (quiet, total) {
            (true, _) => "Working; nothing new comes".to_owned(),
            (false, 1) => "Working; the partition keeps up".to_owned(),
            (false, total) => format!("Working; all {total} partitions keep up"),
        };
        let text = upto
            .map_or_else(String::new, |upto| format!("Every candle that ended by {} UTC is final. ", time(upto)));
        let workers = self.workers.of(Life::Up).count();
        let standing_by = match self.workers.standing_by() {
            0 => String::new(),
            some => format!(", {some} more standing by"),
        };
        Verdict {
            tone: Tone::Ok,
            title,
            text: format!("{text}{} at work{standing_by}.", counted(workers, "worker")),
            causes: Vec::new(),
        }
    }
}

fn kafka_away(away: &Away) -> Verdict {
    let since = away.since.map_or_else(String::new, |since| format!("Since {}. ", time(since)));
    Verdict {
        tone: Tone::Stop,
        title: "Standing still: Kafka does not answer".into(),
        text: format!(
            "{since}Nothing is lost: what was applied and not yet sent waits in Redis. Workers go on by themselves \
             when it is back. Lag and new notifications are not known until then."
        ),
        causes: vec![away.cause("kafka-topics.sh --bootstrap-server", "--list")],
    }
}

impl Away {
    fn cause(&self, command: &str, argument: &str) -> Cause {
        let tries = if self.tries > 1 {
            format!(" {} tries so far.", grouped(i64::from(self.tries)))
        } else {
            String::new()
        };
        Cause {
            glyph: "stop",
            what: self.address.rsplit("://").next().unwrap_or_default().to_owned(),
            partition: None,
            word: capitalised(&self.error),
            why: format!(".{tries}"),
            detail: "Check that it runs:".into(),
            command: Some(format!("{command} {} {argument}", self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::workers::Claim;
    use super::*;

    fn partition(number: i32, hold: Hold) -> Partition {
        Partition {
            partition: number,
            hold,
            owner: Some("a".into()),
            epoch: Some(1),
            watermark: Some(1_000),
            ticks: Some(5),
            end: Some(100),
            lag: Some(0),
            ..Partition::default()
        }
    }

    fn workers() -> Workers {
        let mut workers = Workers::new(1_000, "6000".into());
        let claims = [0, 1, 2].map(|partition| Claim { partition, owner: "a".into(), epoch: 1, seen: 10_000 });
        workers.observe(10_000, &claims, None);
        workers
    }

    fn verdict_of(partitions: &[Partition], redis: Option<&Away>) -> Verdict {
        let workers = workers();
        Situation { now: 10_000, topic: "ticks", partitions, workers: &workers, redis, kafka: None }.verdict()
    }

    #[test]
    fn what_stopped_comes_first_then_the_largest_lag() {
        let partitions = [
            Partition { lag: Some(5), ..partition(0, Hold::Lagging) },
            Partition { lag: Some(12_400), ..partition(1, Hold::Lagging) },
            Partition { reason: "log starts at 500. Set on_gap".into(), ..partition(2, Hold::Stopped) },
            partition(3, Hold::Current),
        ];
        let verdict = verdict_of(&partitions, None);
        assert_eq!(verdict.title, "Working; 3 of 4 partitions hold candles back");
        assert!(verdict.text.starts_with("The other 1 keep up: every candle that ended by ⟦1000⟧ UTC is final."));
        let causes: Vec<_> =
            verdict.causes.iter().map(|cause| (cause.what.as_str(), cause.word.as_str())).collect();
        assert_eq!(causes, [("ticks/2", "Stopped"), ("ticks/1", "Lagging"), ("ticks/0", "Lagging")]);
        assert!(verdict.causes[1].why.contains("12,400 records"), "{:?}", verdict.causes[1]);
    }

    #[test]
    fn a_redis_that_is_away_comes_before_all_else_and_lag_is_a_bound() {
        let away = Away {
            since: Some(4_000),
            address: "127.0.0.1:6379".into(),
            error: "Connection refused".into(),
            tries: 4,
        };
        let verdict = verdict_of(&[Partition { lag: Some(29_880), ..partition(0, Hold::Current) }], Some(&away));
        assert_eq!((verdict.tone, verdict.title.as_str()), (Tone::Stop, "Standing still: Redis does not answer"));
        assert!(verdict.text.starts_with("Since ⟦4000⟧, 6 s ago. Nothing is lost"), "{}", verdict.text);
        assert_eq!(verdict.causes[1].word, "At least 29,880 records");
    }

    #[test]
    fn all_well_and_all_quiet_are_told_apart() {
        assert_eq!(
            verdict_of(&[partition(0, Hold::Current), partition(1, Hold::Quiet)], None).title,
            "Working; all 2 partitions keep up"
        );
        assert_eq!(
            verdict_of(&[partition(0, Hold::Quiet), partition(1, Hold::Quiet)], None).title,
            "Working; nothing new comes"
        );
        assert_eq!(verdict_of(&[Partition { ticks: Some(0), ..partition(0, Hold::Quiet) }], None).tone, Tone::Wait);
    }

    #[test]
    fn without_workers_the_next_step_is_to_start_one() {
        let workers = Workers::new(1_000, "6000".into());
        let partitions = [Partition { owner: None, ..partition(0, Hold::Unclaimed) }];
        let situation = Situation {
            now: 0,
            topic: "ticks",
            partitions: &partitions,
            workers: &workers,
            redis: None,
            kafka: None,
        };
        let verdict = situation.verdict();
        assert_eq!((verdict.tone, verdict.causes[0].command.as_deref()), (Tone::Wait, Some("tickwatch run")));
    }
}
