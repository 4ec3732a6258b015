//! The whole group as one view: what Redis and Kafka said, put together.
//!
//! Pure: answers come in with the time, ms; errors leave what was known, with the time of which it is.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::partition::{Hold, Partition};
use super::rates::{Line, Rate};
use super::verdict::{Away, Situation};
use super::words::{counted, grouped, span, time};
use super::workers::{Claim, Life, Workers};
use crate::config::{Config, LatePolicy, mask_url};
use crate::kafka::onlooker::KafkaView;
use crate::store::sources::Look;

/// Span of the late ratio, and between two of its counts.
const LATE_SPAN: i64 = 300_000;
const LATE_STEP: i64 = 5_000;

/// What is known of one partition.
#[derive(Debug, Default)]
struct Known {
    look: Option<Look>,
    end: Option<i64>,
    /// End offset minus position, at the time the end was told.
    lag: Option<i64>,
    ticks: Rate,
    applied: Rate,
    appended: Rate,
    /// The oldest output waiting, and since when it is seen to.
    oldest_output: Option<(String, i64)>,
}

#[derive(Debug)]
pub(super) struct Overview {
    topic: String,
    late: LatePolicy,
    redis_address: String,
    brokers: String,
    known: BTreeMap<i32, Known>,
    pub(super) workers: Workers,
    kafka: KafkaView,
    redis_at: Option<i64>,
    kafka_at: Option<i64>,
    redis_away: Option<Away>,
    kafka_away: Option<Away>,
    notifications: Rate,
    counts: VecDeque<(i64, i64, i64)>,
    lines: BTreeMap<&'static str, Line>,
}

impl Overview {
    pub(super) fn new(config: &Config) -> Overview {
        let session_timeout = config
            .kafka
            .consumer
            .get("session.timeout.ms")
            .map_or_else(|| "6000".to_owned(), |value| value.0.clone());
        let redis = &config.redis;
        let redis_address = match &redis.master {
            Some(master) if !redis.sentinels.is_empty() => master.clone(),
            _ => mask_url(&redis.url),
        };
        Overview {
            topic: config.kafka.topic.clone(),
            late: config.candles.late,
            redis_address,
            brokers: config.kafka.brokers.clone(),
            known: BTreeMap::new(),
            workers: Workers::new(config.worker.heartbeat.as_millis() as i64, session_timeout),
            kafka: KafkaView::default(),
            redis_at: None,
            kafka_at: None,
            redis_away: None,
            kafka_away: None,
            notifications: Rate::default(),
            counts: VecDeque::new(),
            lines: BTreeMap::new(),
        }
    }

    /// The partitions known so far.
    pub(super) fn partitions(&self) -> Vec<i32> {
        self.known.keys().copied().collect()
    }

    /// What Redis' partitions look like now, by its clock, or why it does not say.
    pub(super) fn redis_said(&mut self, now: i64, answer: Result<(Vec<Look>, i64), String>) {
        match answer {
            Ok((looks, redis_now)) => {
                self.redis_at = Some(now);
                self.redis_away = None;
                for look in looks {
                    self.look(now, now - redis_now, look);
                }
                self.count(now);
                self.observe_workers(now);
            }
            Err(error) => {
                let (since, address) = (self.redis_at, self.redis_address.clone());
                let away = self.redis_away.get_or_insert(Away { since, address, error: String::new(), tries: 0 });
                away.tries += 1;
                away.error = error;
            }
        }
    }

    /// `skew` is this machine's clock minus Redis'.
    fn look(&mut self, now: i64, skew: i64, mut look: Look) {
        let known = self.known.entry(look.state.partition).or_default();
        for time in [&mut look.state.seen, &mut look.state.since].into_iter().flatten() {
            *time += skew;
        }
        known.ticks.count(now, look.state.ticks.unwrap_or_default()); // the count begins with the first tick
        if let Some(next) = look.state.next_offset {
            known.applied.count(now, next);
        }
        let same = known.oldest_output.as_ref().map(|(id, _)| id) == look.oldest_output.as_ref();
        if !same {
            known.oldest_output = look.oldest_output.clone().map(|id| (id, now));
        }
        known.look = Some(look);
    }

    fn count(&mut self, now: i64) {
        let states = || self.known.values().filter_map(|known| known.look.as_ref()).map(|look| &look.state);
        let notifications = states().filter_map(|state| state.notifications).sum();
        let ticks = states().filter_map(|state| state.ticks).sum();
        let late = states().filter_map(|state| state.late).sum();
        self.notifications.count(now, notifications);
        if self.counts.back().is_none_or(|(at, ..)| now - at >= LATE_STEP) {
            self.counts.push_back((now, ticks, late));
        }
        while self.counts.front().is_some_and(|(at, ..)| now - at > LATE_SPAN) {
            self.counts.pop_front();
        }
    }

    fn observe_workers(&mut self, now: i64) {
        let states = self.known.values().filter_map(|known| known.look.as_ref()).map(|look| &look.state);
        let claims: Vec<Claim> = states
            .filter_map(|state| {
                Some(Claim {
                    partition: state.partition,
                    owner: state.owner.clone()?,
                    epoch: state.epoch?,
                    seen: state.seen?,
                })
            })
            .collect();
        self.workers.observe(now, &claims, self.kafka.members.as_deref());
    }

    /// What Kafka said last.
    pub(super) fn kafka_said(&mut self, now: i64, view: KafkaView) {
        match &view.error {
            None if view.answers > 0 => {
                self.kafka_at = Some(now);
                self.kafka_away = None;
            }
            None => {}
            Some(error) => {
                let (since, address) = (self.kafka_at, self.brokers.clone());
                let away = self.kafka_away.get_or_insert(Away { since, address, error: String::new(), tries: 0 });
                away.error.clone_from(error);
            }
        }
        if view.answers != self.kafka.answers {
            for (partition, end) in &view.ends {
                let known = self.known.entry(*partition).or_default();
                known.end = Some(*end);
                known.appended.count(now, *end);
                let next = known.look.as_ref().and_then(|look| look.state.next_offset);
                known.lag = next.map(|next| (end - next).max(0));
            }
        }
        self.kafka = view;
    }

    /// Ticks a second of one partition, if that can be told now.
    fn ticks_per_second(&self, partition: i32) -> Option<f64> {
        if self.redis_away.is_some() {
            return None;
        }
        self.known.get(&partition)?.ticks.per_second()
    }

    fn read_partitions(&self, now: i64) -> Vec<Partition> {
        self.known.iter().map(|(number, known)| self.read_partition(now, *number, known)).collect()
    }

    fn read_partition(&self, now: i64, number: i32, known: &Known) -> Partition {
        let as_of = self.redis_away.as_ref().and(self.redis_at);
        let growth = known.appended.per_second().zip(known.applied.per_second()).map(|(in_, out)| in_ - out);
        let mut partition = Partition {
            partition: number,
            end: known.end,
            lag: known.lag,
            lag_is_bound: self.redis_away.is_some(),
            lag_growth: growth,
            as_of,
            ..Partition::default()
        };
        let Some(look) = &known.look else {
            partition.hold = if self.redis_away.is_some() { Hold::Unknown } else { Hold::Unclaimed };
            return partition;
        };
        let state = &look.state;
        partition.hold = Hold::of(state.state.as_deref());
        partition.reason = state.reason.clone().unwrap_or_default();
        partition.since = state.since;
        partition.owner.clone_from(&state.owner);
        partition.epoch = state.epoch;
        partition.next_offset = state.next_offset;
        partition.watermark = state.watermark;
        partition.windows = Some(look.state.due);
        partition.next_due = look.next_due;
        partition.outbox = Some(look.state.outbox);
        partition.ticks = state.ticks.or(Some(0));
        if self.redis_away.is_some() {
            let at = self.redis_at.map_or_else(String::new, |at| format!(" at {}", time(at)));
            partition.reason = format!("Redis is away; was {}{at}", partition.hold.name());
            partition.hold = Hold::Unknown;
            return partition;
        }
        self.tell_of_owner(now, &mut partition);
        partition
    }

    /// Says where the partition came from and where it goes.
    fn tell_of_owner(&self, now: i64, partition: &mut Partition) {
        let Some(owner) = partition.owner.clone() else { return };
        let number = partition.partition;
        let caught_up = partition.hold != Hold::Lagging && partition.lag.is_none_or(|lag| lag < 100);
        let life = self.workers.workers.get(&owner).map(|worker| worker.life);
        match life {
            Some(Life::Gone) => {
                let to = self.workers.assignee(number, self.kafka.members.as_deref()).filter(|to| *to != owner);
                partition.reason = match to {
                    Some(to) => format!("from {owner} to {to}, not claimed yet"),
                    None => format!("from {owner}, to nobody yet"),
                };
                partition.hold = Hold::Moving;
            }
            Some(Life::Silent) if partition.hold != Hold::Stopped => {
                let seen = self.workers.workers.get(&owner).map_or(now, |worker| worker.seen);
                partition.reason =
                    format!("no sign of life from {owner} for {}; was {}", span(now - seen), partition.hold.name());
                partition.hold = Hold::Silent;
            }
            _ => {
                if let Some(moved) = self.workers.moved(now, number, caught_up)
                    && partition.hold != Hold::Stopped
                {
                    let epoch = partition.epoch.unwrap_or_default();
                    let progress = if caught_up { "caught up" } else { "catching up" };
                    partition.reason = format!("from {}, epoch {} → {epoch}, {progress}", moved.from, moved.epoch);
                    partition.hold = Hold::Moved;
                }
            }
        }
    }

    /// The view for all pages.
    pub(super) fn view(&mut self, now: i64) -> Map<String, Value> {
        let partitions = self.read_partitions(now);
        let situation = Situation {
            now,
            topic: &self.topic,
            partitions: &partitions,
            workers: &self.workers,
            redis: self.redis_away.as_ref(),
            kafka: self.kafka_away.as_ref(),
        };
        let verdict = situation.verdict();
        let numbers = self.numbers(now, &partitions);
        let mut view = Map::new();
        view.insert("now".into(), (now / 1_000 * 1_000).into());
        if let (None, None) = (self.redis_at, self.redis_away.as_ref()) {
            return view; // nothing was read yet
        }
        view.insert("verdict".into(), json!(verdict));
        view.insert("story".into(), json!(self.workers.story));
        view.insert("numbers".into(), numbers);
        view.insert(
            "lines".into(),
            self.lines.iter().map(|(name, line)| ((*name).to_owned(), json!(line.points()))).collect(),
        );
        let rows = partitions.iter().map(|partition| (partition.partition.to_string(), partition.view()));
        view.insert("partitions".into(), Value::Object(rows.collect()));
        view.insert("workers".into(), self.workers.lanes(now, |partition| self.ticks_per_second(partition)));
        view.insert("standing_by".into(), self.workers.standing_by().into());
        for (name, away, at) in
            [("redis_as_of", &self.redis_away, self.redis_at), ("kafka_as_of", &self.kafka_away, self.kafka_at)]
        {
            if away.is_some() {
                view.insert(name.into(), at.unwrap_or_default().into());
            }
        }
        view
    }

    fn numbers(&mut self, now: i64, partitions: &[Partition]) -> Value {
        let redis_as_of = self.redis_away.as_ref().and(self.redis_at);
        let kafka_as_of = self.kafka_away.as_ref().and(self.kafka_at);
        let rates: Vec<f64> = self.known.values().filter_map(|known| known.ticks.per_second()).collect();
        let tps = (!rates.is_empty()).then(|| rates.iter().sum::<f64>().round());
        let nps = self.notifications.per_second().map(|rate| (rate * 10.0).round() / 10.0);
        let (late, late_note) = self.late();
        let lags: Vec<i64> = partitions.iter().filter_map(|partition| partition.lag).collect();
        let lag = (!lags.is_empty()).then(|| lags.iter().sum::<i64>());
        let windows: Option<u64> = partitions.iter().filter_map(|p| p.windows).reduce(|a, b| a + b);
        let outbox: Option<u64> = partitions.iter().filter_map(|p| p.outbox).reduce(|a, b| a + b);
        let mut numbers = Map::new();
        let mut add = |name: &'static str, value: Option<f64>, note: String, as_of: Option<i64>| {
            let mut number = json!({ "note": note });
            if let Some(value) = value {
                number["value"] = if value.fract() == 0.0 { json!(value as i64) } else { json!(value) };
                if as_of.is_none() {
                    self.lines.entry(name).or_default().add(now, value);
                }
            }
            if let Some(as_of) = as_of {
                number["as_of"] = as_of.into();
            }
            numbers.insert(name.to_owned(), number);
        };
        let total: i64 = self.known.values().filter_map(|known| known.look.as_ref()?.state.notifications).sum();
        add("tps", tps, String::new(), redis_as_of);
        add("nps", nps, format!("{} in all", grouped(total)), redis_as_of);
        add("late", late, late_note, redis_as_of);
        add("lag", lag.map(|lag| lag as f64), lag_note(partitions), kafka_as_of);
        let oldest = partitions.iter().filter_map(|p| p.next_due).min();
        let windows_note =
            oldest.map_or_else(|| "none is open".to_owned(), |due| format!("next due {}", time(due)));
        add("windows", windows.map(|n| n as f64), windows_note, redis_as_of);
        let waits = self.known.values().filter_map(|known| known.oldest_output.as_ref()).map(|(_, at)| *at).min();
        let outbox_note = waits.map_or_else(
            || "all delivered".to_owned(),
            |at| format!("oldest {}.{} s", (now - at) / 1_000, (now - at) % 1_000 / 100),
        );
        add("outbox", outbox.map(|n| n as f64), outbox_note, redis_as_of);
        let peak = self.lines.get("tps").and_then(Line::peak);
        numbers["tps"]["note"] = peak
            .map_or_else(|| "counting".to_owned(), |peak| format!("peak {} in 5 min", grouped(peak as i64)))
            .into();
        if self.redis_away.is_some() && kafka_as_of.is_none() {
            numbers["lag"]["bound"] = true.into();
        }
        Value::Object(numbers)
    }

    /// Late ticks of the last five minutes in percent, and what became of them.
    fn late(&self) -> (Option<f64>, String) {
        let (Some((_, first_ticks, first_late)), Some((_, ticks, late))) =
            (self.counts.front(), self.counts.back())
        else {
            return (None, "counting".into());
        };
        let recent = (ticks - first_ticks, late - first_late);
        let (ticks, late) = if recent.0 > 0 { recent } else { (*ticks, *late) };
        if ticks <= 0 {
            return (None, "no ticks yet".into());
        }
        let became = match self.late {
            LatePolicy::Drop => "dropped",
            LatePolicy::Divert => "diverted",
            LatePolicy::Revise => "revised",
        };
        let percent = (late as f64 / ticks as f64 * 10_000.0).round() / 100.0;
        (Some(percent), format!("{} {became} of {}", grouped(late), grouped(ticks)))
    }
}

/// Lag below this is what passes through.
const WORTH_TELLING: i64 = 1_000;

fn lag_note(partitions: &[Partition]) -> String {
    let mut lags: Vec<i64> =
        partitions.iter().filter_map(|partition| partition.lag).filter(|lag| *lag > 0).collect();
    lags.sort_unstable_by_key(|lag| std::cmp::Reverse(*lag));
    let total: i64 = lags.iter().sum();
    if total < WORTH_TELLING {
        return format!("in {}", counted(partitions.len(), "partition"));
    }
    // So many of the largest that they hold nearly all of it.
    let mut sum = 0;
    let most = lags.iter().take_while(|lag| {
        let before = sum;
        sum += **lag;
        before * 100 < total * 98
    });
    match most.count() {
        1 => "1 partition holds nearly all of it".into(),
        few if few < partitions.len() => format!("{few} partitions hold nearly all of it"),
        all => format!("in {}", counted(all, "partition")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sources::SourceState;

    fn look(partition: i32, seen: i64, next_offset: i64) -> Look {
        let state = SourceState {
            partition,
            owner: Some("a".into()),
            epoch: Some(1),
            seen: Some(seen),
            next_offset: Some(next_offset),
            watermark: Some(seen - 2_000),
            ticks: Some(next_offset),
            state: Some("current".into()),
            ..SourceState::default()
        };
        Look { state, ..Look::default() }
    }

    fn kafka(ends: &[(i32, i64)], answers: u64) -> KafkaView {
        KafkaView { ends: ends.iter().copied().collect(), answers, ..KafkaView::default() }
    }

    #[test]
    fn what_cannot_be_read_now_stays_with_its_time_and_lag_becomes_a_bound() {
        let mut overview = Overview::new(&Config::default());
        overview.kafka_said(1_000, kafka(&[(0, 110)], 1));
        overview.redis_said(1_000, Ok((vec![look(0, 1_000, 100)], 1_000)));
        overview.kafka_said(1_400, kafka(&[(0, 120)], 2));
        assert_eq!(overview.view(1_400)["partitions"]["0"]["lag"], 20);
        overview.redis_said(2_000, Err("Connection refused".into()));
        overview.kafka_said(2_000, kafka(&[(0, 500)], 3));
        let view = overview.view(2_000);
        let row = &view["partitions"]["0"];
        assert_eq!((&row["position"], &row["as_of"]), (&json!(100), &json!(1_000)));
        assert_eq!((&row["lag"], &row["bound"]), (&json!(400), &json!(true)));
        assert_eq!(row["reason"], "Redis is away; was current at ⟦1000⟧");
        assert_eq!(view["verdict"]["title"], "Standing still: Redis does not answer");
        assert_eq!(view["numbers"]["windows"]["as_of"], 1_000);
        overview.redis_said(3_000, Ok((vec![look(0, 3_000, 490)], 3_000)));
        assert!(overview.view(3_000)["partitions"]["0"].get("as_of").is_none());
    }

    #[test]
    fn redis_clock_is_translated_to_this_machines() {
        let mut overview = Overview::new(&Config::default());
        overview.redis_said(1_000_000, Ok((vec![look(0, 5_000, 1)], 5_500)));
        assert_eq!(overview.workers.workers["a"].seen, 999_500);
    }

    #[test]
    fn without_an_answer_nothing_is_said_to_be_zero() {
        let mut overview = Overview::new(&Config::default());
        let view = overview.view(1_000);
        assert!(view.get("numbers").is_none() && view.get("verdict").is_none());
        overview.redis_said(1_000, Err("no route".into()));
        let view = overview.view(1_000);
        for name in ["tps", "nps", "lag", "windows", "outbox"] {
            assert!(view["numbers"][name].get("value").is_none(), "{name}");
        }
    }

    #[test]
    fn the_few_partitions_that_hold_the_lag_are_counted() {
        let with = |lags: &[i64]| -> Vec<Partition> {
            lags.iter().map(|lag| Partition { lag: Some(*lag), ..Partition::default() }).collect()
        };
        assert_eq!(lag_note(&with(&[12_400, 3, 9_312, 0])), "2 partitions hold nearly all of it");
        assert_eq!(lag_note(&with(&[0, 0])), "in 2 partitions");
        assert_eq!(lag_note(&with(&[5, 5])), "in 2 partitions");
    }
}
