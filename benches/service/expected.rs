//! What has to come of an input, worked out from its ticks in the plainest way, and what did come of it.
//!
//! The ticks are in order and each partition's last closes every window before it, so there is one right answer: no
//! tick is late, and a symbol's candles are its ticks cut by time.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::hash::Hash;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::common::oracle::window;
use crate::market::{Rule, Spec, Tick, Trigger, symbol_number};

/// Which tick fired which rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AlertKey {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) rule: String,
}

/// What a notification says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alert {
    pub(crate) symbol: u32,
    /// In hundredths.
    pub(crate) price: i64,
    pub(crate) ts: i64,
}

/// Which candle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CandleKey {
    pub(crate) symbol: u32,
    pub(crate) interval: String,
    pub(crate) start: i64,
}

/// What a final candle says; prices in hundredths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candle {
    pub(crate) open: i64,
    pub(crate) high: i64,
    pub(crate) low: i64,
    pub(crate) close: i64,
    pub(crate) volume: u64,
    pub(crate) count: u64,
}

/// All that has to come.
#[derive(Debug, Default, Clone)]
pub(crate) struct Expected {
    pub(crate) alerts: HashMap<AlertKey, Alert>,
    pub(crate) candles: HashMap<CandleKey, Candle>,
    /// The last candle of each symbol and interval. A contender without a watermark never closes it.
    pub(crate) last_candles: HashMap<CandleKey, Candle>,
}

/// Follows the ticks.
pub(crate) struct Oracle {
    rules: Vec<Rule>,
    intervals: Vec<&'static str>,
    last: Vec<Option<i64>>,
    /// By symbol and interval: the start of the window that is open, and its candle.
    open: Vec<Option<(i64, Candle)>>,
    expected: Expected,
}

impl Oracle {
    pub(crate) fn new(spec: &Spec) -> Oracle {
        let symbols = spec.symbols as usize;
        Oracle {
            // Rules that no price reaches are left out: looking at a million of them on each tick takes hours.
            rules: Spec { far_rules: 0, ..*spec }.rules(),
            intervals: spec.intervals.to_vec(),
            last: vec![None; symbols],
            open: vec![None; symbols * spec.intervals.len()],
            expected: Expected::default(),
        }
    }

    /// The next tick, which is in `partition` at `offset`.
    pub(crate) fn take(&mut self, tick: Tick, partition: i32, offset: i64) {
        let previous = self.last[tick.symbol as usize].replace(tick.price);
        for rule in self.rules.iter().filter(|rule| fires(rule, previous, tick.price)) {
            let key = AlertKey { partition, offset, rule: rule.id.clone() };
            let alert = Alert { symbol: tick.symbol, price: tick.price, ts: tick.ts };
            self.expected.alerts.insert(key, alert);
        }
        for number in 0..self.intervals.len() {
            self.count(number, tick);
        }
    }

    fn count(&mut self, number: usize, tick: Tick) {
        let (start, _) = window(self.intervals[number], tick.ts);
        let open = &mut self.open[tick.symbol as usize * self.intervals.len() + number];
        if let Some((open_start, candle)) = open
            && *open_start == start
        {
            candle.high = candle.high.max(tick.price);
            candle.low = candle.low.min(tick.price);
            candle.close = tick.price;
            candle.volume += tick.volume;
            candle.count += 1;
            return;
        }
        let Tick { price, volume, .. } = tick;
        let first = Candle { open: price, high: price, low: price, close: price, volume, count: 1 };
        if let Some((start, candle)) = open.replace((start, first)) {
            let interval = self.intervals[number].to_owned();
            self.expected.candles.insert(CandleKey { symbol: tick.symbol, interval, start }, candle);
        }
    }

    /// Closes every window.
    pub(crate) fn finish(mut self) -> Expected {
        for (place, open) in self.open.iter_mut().enumerate() {
            if let Some((start, candle)) = open.take() {
                let symbol = (place / self.intervals.len()) as u32;
                let interval = self.intervals[place % self.intervals.len()].to_owned();
                self.expected.last_candles.insert(CandleKey { symbol, interval, start }, candle);
            }
        }
        self.expected
    }
}

fn fires(rule: &Rule, previous: Option<i64>, price: i64) -> bool {
    let matches = |price: i64| match rule.op {
        "<" => price < rule.threshold,
        "<=" => price <= rule.threshold,
        ">=" => price >= rule.threshold,
        ">" => price > rule.threshold,
        op => panic!("{op} is no operator of an input"),
    };
    matches(price)
        && match rule.trigger {
            Trigger::Level => true,
            Trigger::Edge => previous.is_some_and(|previous| !matches(previous)),
        }
}

/// What was read back.
#[derive(Debug, Default)]
pub(crate) struct Found {
    alerts: HashMap<AlertKey, Alert>,
    candles: HashMap<CandleKey, Candle>,
    /// Records that say what another said.
    pub(crate) repeated: u64,
}

impl Found {
    /// Notifications that repeat none.
    pub(crate) fn alerts(&self) -> usize {
        self.alerts.len()
    }

    /// Final candles that repeat none.
    pub(crate) fn candles(&self) -> usize {
        self.candles.len()
    }

    pub(crate) fn take_alert(&mut self, value: &[u8]) -> anyhow::Result<()> {
        #[derive(Deserialize)]
        struct Value<'a> {
            rule: String,
            symbol: &'a str,
            #[serde(borrow)]
            price: &'a RawValue,
            ts: i64,
            source: Source,
        }
        #[derive(Deserialize)]
        struct Source {
            partition: i32,
            offset: i64,
        }
        let value: Value<'_> = parse(value)?;
        let Source { partition, offset } = value.source;
        let key = AlertKey { partition, offset, rule: value.rule };
        let symbol = symbol_number(value.symbol).context("a rule fired on a symbol without rules")?;
        let alert = Alert { symbol, price: hundredths(value.price)?, ts: value.ts };
        keep(&mut self.alerts, &mut self.repeated, key, alert)
    }

    pub(crate) fn take_candle(&mut self, value: &[u8]) -> anyhow::Result<()> {
        #[derive(Deserialize)]
        struct Value<'a> {
            symbol: &'a str,
            interval: String,
            start: i64,
            #[serde(borrow)]
            open: &'a RawValue,
            #[serde(borrow)]
            high: &'a RawValue,
            #[serde(borrow)]
            low: &'a RawValue,
            #[serde(borrow)]
            close: &'a RawValue,
            #[serde(borrow)]
            volume: &'a RawValue,
            count: u64,
            status: &'a str,
        }
        let value: Value<'_> = parse(value)?;
        ensure!(value.status == "final", "a candle with status {}", value.status);
        let Some(symbol) = symbol_number(value.symbol) else {
            return Ok(()); // of a tick that ends a partition; whether it closes is no matter
        };
        let key = CandleKey { symbol, interval: value.interval, start: value.start };
        let volume = hundredths(value.volume)?;
        ensure!(volume % 100 == 0, "a volume of {}", value.volume);
        let candle = Candle {
            open: hundredths(value.open)?,
            high: hundredths(value.high)?,
            low: hundredths(value.low)?,
            close: hundredths(value.close)?,
            volume: (volume / 100) as u64,
            count: value.count,
        };
        keep(&mut self.candles, &mut self.repeated, key, candle)
    }

    /// Fails with the first differences.
    pub(crate) fn compare(&self, expected: &Expected, with_last: bool) -> anyhow::Result<()> {
        let mut differences = String::new();
        let mut count = differ(&expected.alerts, &self.alerts, &mut differences);
        let mut candles = expected.candles.clone();
        if with_last {
            candles.extend(expected.last_candles.clone());
        }
        count += differ(&candles, &self.candles, &mut differences);
        ensure!(count == 0, "{count} outputs are not as they have to be, such as:\n{differences}");
        Ok(())
    }
}

/// How many notifications and how many candles have to come.
pub(crate) fn count(expected: &Expected, with_last: bool) -> (usize, usize) {
    let last = if with_last { expected.last_candles.len() } else { 0 };
    (expected.alerts.len(), expected.candles.len() + last)
}

fn keep<K: Hash + Eq + Debug, V: PartialEq + Debug>(
    found: &mut HashMap<K, V>,
    repeated: &mut u64,
    key: K,
    value: V,
) -> anyhow::Result<()> {
    match found.get(&key) {
        Some(before) if *before == value => *repeated += 1,
        Some(before) => bail!("{key:?} was sent twice, differently: {before:?} and {value:?}"),
        None => drop(found.insert(key, value)),
    }
    Ok(())
}

/// How many differ; the first few are written to `told`.
fn differ<K: Hash + Eq + Debug, V: PartialEq + Debug>(
    expected: &HashMap<K, V>,
    found: &HashMap<K, V>,
    told: &mut String,
) -> usize {
    const TOLD: usize = 5;
    let mut count = 0;
    let mut tell = |text: String| {
        count += 1;
        if count <= TOLD {
            writeln!(told, "  {text}").expect("a String takes every write");
        }
    };
    for (key, value) in expected {
        match found.get(key) {
            None => tell(format!("missing: {key:?}: {value:?}")),
            Some(other) if other != value => tell(format!("{key:?}: expected {value:?}, found {other:?}")),
            Some(_) => {}
        }
    }
    for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(key)) {
        tell(format!("unexpected: {key:?}: {value:?}"));
    }
    count
}

fn parse<'a, T: Deserialize<'a>>(value: &'a [u8]) -> anyhow::Result<T> {
    serde_json::from_slice(value).with_context(|| format!("no output: {}", String::from_utf8_lossy(value)))
}

/// A plain decimal, a JSON number or text, in hundredths.
pub(crate) fn hundredths(raw: &RawValue) -> anyhow::Result<i64> {
    let text = raw.get().trim_matches('"');
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    ensure!(fraction.len() <= 2, "{text} is finer than any tick");
    format!("{whole}{fraction:0<2}").parse().with_context(|| format!("{text} is no plain decimal"))
}
