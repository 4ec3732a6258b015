//! From a tick's sending to its notification in a consumer's hands, at a steady pace, beside one plain trip through the
//! same broker.
//!
//! Each path has a producer and a consumer of its own, new, with the same settings. Every tick fires one level rule. A
//! tick's price is its number, by which its notification (or the tick itself, on the plain trip) is known again.

use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::clients::{Reader, Sender};
use crate::common::kafka::Isolation;
use crate::common::{connect, now};
use crate::contenders::{Contender, Form, Job, Once, Running};
use crate::expected::hundredths;
use crate::lab::{Lab, Names, put_rules, start_redis};
use crate::market::{Rule, Trigger, decimal, symbol_name};
use crate::statistics::percentile;

/// Ticks a second.
const RATE: u32 = 200;
/// Not counted: caches and a JVM warm up.
const WARM_UP: Duration = Duration::from_secs(5);
const SYMBOLS: u32 = 20;
const PARTITIONS: i32 = 6;
/// The price of tick 0, in hundredths: above the rule's threshold, as all are.
const FIRST_PRICE: i64 = 10_000;
/// How long the first notification may take to come, the contender's start and all.
const START: Duration = Duration::from_mins(1);
/// Between two ticks that only ask whether the contender is at work.
const ASKING: Duration = Duration::from_millis(200);
/// How long the last notification may take.
const LAST: Duration = Duration::from_secs(20);

/// What lies between the producer and the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing but the broker.
    Plain,
    Through(Contender),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Plain => f.write_str("produce and consume"),
            Way::Through(contender) => contender.fmt(f),
        }
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Way {
    /// All that are compared.
    pub(crate) fn all(with_peers: bool) -> Vec<Way> {
        let mut all = vec![
            Way::Plain,
            Way::Through(Contender::Tickwatch(Once::AtLeast)),
            Way::Through(Contender::Tickwatch(Once::Exactly)),
        ];
        if with_peers {
            all.extend(
                [Form::Processor, Form::Dsl].map(|form| Way::Through(Contender::Streams(form, Once::Exactly))),
            );
        }
        all
    }

    fn isolation(self) -> Isolation {
        match self {
            Way::Plain => Isolation::ReadUncommitted,
            Way::Through(contender) => contender.isolation(),
        }
    }
}

/// What one run came to, ms.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) way: Way,
    pub(crate) repetition: u32,
    pub(crate) ticks: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Measures one way for so long.
pub(crate) fn run(
    lab: &Lab,
    way: Way,
    length: Duration,
    peers: Option<&Path>,
    repetition: u32,
) -> anyhow::Result<Latency> {
    let names = lab.output_topics("latency")?;
    let source = lab.source_topic(PARTITIONS)?;
    let rule = Rule { id: "every".into(), trigger: Trigger::Level, op: ">=", threshold: FIRST_PRICE };
    let rules = [rule];
    let job = Job { topic: &source, names: &names, symbols: SYMBOLS, rules: &rules, intervals: &["1s"] };
    let (mut redis, mut running) = (None, None);
    if let Way::Through(contender) = way {
        if contender.uses_redis() {
            let started = start_redis()?;
            put_rules(&mut connect(&started.url())?, SYMBOLS, &rules)?;
            redis = Some(started);
        }
        running = Some(contender.start(lab, &job, redis.as_ref(), peers)?);
    }
    let outcome = measure(lab, way, &source, &names, running.as_mut(), length);
    let log = running.as_ref().map(Running::log_tail).unwrap_or_default();
    if let Some(mut running) = running {
        running.stop()?;
    }
    lab.delete_topics(&names.group)?;
    lab.delete_topics(&source)?;
    let mut took =
        outcome.map_err(|error| anyhow!("latency, {way}: {error:#}\nthe contender's log ends with:\n{log}"))?;
    took.sort_by(f64::total_cmp);
    Ok(Latency {
        way,
        repetition,
        ticks: took.len(),
        p50_ms: percentile(&took, 0.50),
        p99_ms: percentile(&took, 0.99),
        max_ms: percentile(&took, 1.0),
    })
}

fn measure(
    lab: &Lab,
    way: Way,
    source: &str,
    names: &Names,
    mut running: Option<&mut Running>,
    length: Duration,
) -> anyhow::Result<Vec<f64>> {
    let topic = if way == Way::Plain { source } else { &names.notifications };
    let reader = Reader::from_now_on(lab.brokers(), topic, way.isolation())?;
    let line = Line { sender: Sender::new(lab.brokers(), source)?, sent: Mutex::default() };
    let (seen, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let arrivals = scope.spawn(|| {
            let mut arrivals = Vec::new();
            let outcome = reader.read(|value, _| {
                if let Some(value) = value {
                    let arrived = Instant::now();
                    let number = number_of(value)?;
                    if arrivals.len() <= number {
                        arrivals.resize(number + 1, None);
                    }
                    if arrivals[number].is_none() {
                        arrivals[number] = Some(arrived);
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(over.load(Ordering::Relaxed))
            });
            outcome.map(|()| arrivals)
        });
        let sent = line.send_all(length, &seen, || running.as_mut().map_or(Ok(()), |running| running.check()));
        over.store(true, Ordering::Relaxed);
        let arrivals = arrivals.join().expect("the reader does not panic")?;
        let first = sent?;
        let sent = line.sent.lock().expect("nobody panics with it");
        let all = sent.iter().enumerate().skip(first).map(|(number, at)| {
            let arrived = arrivals.get(number).copied().flatten();
            arrived
                .with_context(|| format!("tick {number} of {} has no notification", sent.len()))
                .map(|arrived| (arrived - *at).as_secs_f64() * 1e3)
        });
        all.collect()
    })
}

/// Where ticks go in.
struct Line {
    sender: Sender,
    sent: Mutex<Vec<Instant>>,
}

impl Line {
    /// Waits until the contender is at work, then sends at the pace. Returns the number of the first tick that counts.
    fn send_all(
        &self,
        length: Duration,
        seen: &AtomicUsize,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let deadline = Instant::now() + START;
        while seen.load(Ordering::Relaxed) == 0 {
            check()?;
            ensure!(Instant::now() < deadline, "no notification came within {START:?}");
            self.send()?;
            thread::sleep(ASKING);
        }
        let begin = Instant::now();
        let mut first = None;
        for number in 0.. {
            let due = begin + number * Duration::from_secs(1) / RATE;
            if due > begin + WARM_UP + length {
                break;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let number = self.send()?;
            if due >= begin + WARM_UP {
                first.get_or_insert(number);
            }
        }
        let sent = self.sent.lock().expect("nobody panics with it").len();
        let deadline = Instant::now() + LAST;
        while seen.load(Ordering::Relaxed) < sent && Instant::now() < deadline {
            check()?;
            thread::sleep(Duration::from_millis(10));
        }
        first.context("the measurement is longer than no time")
    }

    /// Sends the next tick; returns its number.
    fn send(&self) -> anyhow::Result<usize> {
        let number = self.sent.lock().expect("nobody panics with it").len();
        let symbol = symbol_name(number as u32 % SYMBOLS);
        let (price, ts) = (decimal(FIRST_PRICE + number as i64), now());
        let value = format!(r#"{{"symbol":"{symbol}","price":{price},"volume":1,"ts":{ts}}}"#);
        self.sent.lock().expect("nobody panics with it").push(Instant::now());
        self.sender.send(&symbol, &value)?;
        Ok(number)
    }
}

/// The number of the tick whose price this is.
fn number_of(value: &[u8]) -> anyhow::Result<usize> {
    #[derive(Deserialize)]
    struct Priced<'a> {
        #[serde(borrow)]
        price: &'a RawValue,
    }
    let priced: Priced<'_> = serde_json::from_slice(value)?;
    Ok(usize::try_from(hundredths(priced.price)? - FIRST_PRICE)?)
}
