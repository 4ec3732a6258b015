//! What the whole service should have sent, worked out a second time in the plainest way: every window keeps its
//! ticks, every rule is looked at on every tick, numbers are whole multiples of 1e-18.
//!
//! It shares no code with the service. End-to-end tests give it the source log as it is in Kafka and compare sets of
//! records. It takes time from ticks only and closes everything at the end, so it stands for `run --until-end`, or
//! for a run in which no window was closed by the clock before its last tick. `max_matches`, future ticks and
//! generations are not modelled.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;

/// What decides how one source partition is read.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// Names as the service prints them: `1s`, `1m`, `1w`.
    pub(crate) intervals: Vec<String>,
    /// ms
    pub(crate) lateness: i64,
    pub(crate) late: Late,
    /// How far back `revise` reaches, ms.
    pub(crate) keep: i64,
}

/// What happens to ticks whose window has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    Drop,
    Divert,
    Revise,
}

/// A record of the source log that could be decoded.
#[derive(Debug, Clone)]
pub(crate) struct LogRecord {
    pub(crate) offset: i64,
    pub(crate) ticks: Vec<Tick>,
}

/// A tick as it was sent: numbers are text.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    pub(crate) symbol: String,
    pub(crate) price: String,
    pub(crate) volume: String,
    /// ms
    pub(crate) ts: i64,
}

/// A rule; ids are unique within a symbol.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    pub(crate) symbol: String,
    pub(crate) id: String,
    /// `edge` or `level`.
    pub(crate) trigger: &'static str,
    /// One of `< <= = >= >`.
    pub(crate) op: &'static str,
    pub(crate) threshold: String,
    pub(crate) once: bool,
    /// ms
    pub(crate) cooldown: Option<i64>,
    /// ms since the epoch
    pub(crate) expires: Option<i64>,
    pub(crate) note: Option<String>,
}

/// All that comes of a log.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Expected {
    pub(crate) notifications: BTreeSet<Notification>,
    /// Final candles, and revisions of them.
    pub(crate) candles: BTreeSet<Candle>,
    /// By symbol, interval and start: the candle as it was sent last, which is what Redis holds.
    pub(crate) stored: BTreeMap<(String, String, i64), Candle>,
    /// Price and ts by symbol.
    pub(crate) last: BTreeMap<String, (String, i64)>,
    pub(crate) diverted: BTreeSet<Diverted>,
    /// Ticks late for at least one window.
    pub(crate) late: u64,
    pub(crate) out_of_order: u64,
}

/// A record of the topic of notifications; numbers are plain decimal text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Notification {
    pub(crate) id: String,
    pub(crate) rule: String,
    pub(crate) symbol: String,
    pub(crate) trigger: String,
    pub(crate) op: String,
    pub(crate) threshold: String,
    pub(crate) price: String,
    pub(crate) previous: Option<String>,
    pub(crate) ts: i64,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) note: Option<String>,
}

/// A record of the topic of candles; numbers are plain decimal text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candle {
    pub(crate) symbol: String,
    pub(crate) interval: String,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) open: String,
    pub(crate) high: String,
    pub(crate) low: String,
    pub(crate) close: String,
    pub(crate) volume: String,
    pub(crate) count: u64,
    pub(crate) status: String,
    pub(crate) revision: i64,
}

/// A record of the topic of late ticks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Diverted {
    pub(crate) offset: i64,
    pub(crate) symbol: String,
    pub(crate) price: String,
    pub(crate) volume: String,
    pub(crate) ts: i64,
    /// The header `late.intervals`.
    pub(crate) intervals: String,
}

/// What the service should make of `log` (in offset order) with `rules` that are there from the start.
pub(crate) fn expected(settings: &Settings, rules: &[Rule], log: &[LogRecord]) -> Expected {
    expected_after(settings, rules, log, &[])
}

/// [`expected`], where besides the watermark was raised by silence: to (second, ms) before the record at (first).
pub(crate) fn expected_after(
    settings: &Settings,
    rules: &[Rule],
    log: &[LogRecord],
    raises: &[(i64, i64)],
) -> Expected {
    let mut raises = raises.iter().peekable();
    let mut oracle = Oracle {
        settings,
        rules: rules.iter().map(LiveRule::new).collect(),
        last: BTreeMap::new(),
        windows: BTreeMap::new(),
        watermark: None,
        expected: Expected::default(),
    };
    for record in log {
        while let Some((_, watermark)) = raises.next_if(|(before, _)| *before <= record.offset) {
            oracle.watermark = oracle.watermark.max(Some(*watermark));
        }
        oracle.take(record);
    }
    oracle.finish()
}

struct Oracle<'a> {
    settings: &'a Settings,
    rules: Vec<LiveRule<'a>>,
    last: BTreeMap<String, (Decimal, i64)>,
    /// By symbol, number of the interval, and start: every tick that counts, in log order.
    windows: BTreeMap<(String, usize, i64), Vec<WindowTick>>,
    /// ms; `None` before the first tick.
    watermark: Option<i64>,
    expected: Expected,
}

struct LiveRule<'a> {
    rule: &'a Rule,
    threshold: Decimal,
    gone: bool,
    fired: Option<i64>,
}

impl<'a> LiveRule<'a> {
    fn new(rule: &'a Rule) -> LiveRule<'a> {
        LiveRule { rule, threshold: Decimal::price(&rule.threshold), gone: false, fired: None }
    }

    fn holds(&self, price: Decimal) -> bool {
        let order = price.cmp(&self.threshold);
        match self.rule.op {
            "<" => order == Ordering::Less,
            "<=" => order != Ordering::Greater,
            "=" => order == Ordering::Equal,
            ">=" => order != Ordering::Less,
            ">" => order == Ordering::Greater,
            op => panic!("{op} is no operator"),
        }
    }

    /// Whether it fires; remembers that it did.
    fn fires(&mut self, previous: Option<Decimal>, price: Decimal, ts: i64) -> bool {
        let triggered = match self.rule.trigger {
            "level" => self.holds(price),
            "edge" => self.holds(price) && previous.is_some_and(|previous| !self.holds(previous)),
            trigger => panic!("{trigger} is no trigger"),
        };
        if self.gone || !triggered {
            return false;
        }
        if self.rule.expires.is_some_and(|expires| ts >= expires) {
            self.gone = true;
            return false;
        }
        if let (Some(cooldown), Some(fired)) = (self.rule.cooldown, self.fired)
            && ts - fired < cooldown
        {
            return false;
        }
        self.fired = Some(ts);
        self.gone = self.rule.once;
        true
    }
}

#[derive(Debug, Clone, Copy)]
struct WindowTick {
    price: Decimal,
    volume: Decimal,
    ts: i64,
    late: bool,
}

impl Oracle<'_> {
    /// A record is one unit: all its ticks are judged by the watermark before it.
    fn take(&mut self, record: &LogRecord) {
        let watermark = self.watermark;
        let mut revised = BTreeSet::new();
        for (index, tick) in record.ticks.iter().enumerate() {
            self.move_price(record.offset, index, tick);
            self.count(record.offset, tick, watermark, &mut revised);
            self.watermark = self.watermark.max(Some(tick.ts - self.settings.lateness));
        }
        for window in revised {
            self.send(&window, "revised", record.offset + 1, |_| true);
        }
    }

    fn move_price(&mut self, offset: i64, index: usize, tick: &Tick) {
        let price = Decimal::price(&tick.price);
        let before = self.last.get(&tick.symbol).copied();
        if before.is_some_and(|(_, ts)| tick.ts < ts) {
            self.expected.out_of_order += 1;
            return;
        }
        self.last.insert(tick.symbol.clone(), (price, tick.ts));
        let previous = before.map(|(price, _)| price);
        let Settings { topic, partition, .. } = self.settings;
        let place = if index == 0 { offset.to_string() } else { format!("{offset}.{index}") };
        for live in self.rules.iter_mut().filter(|live| live.rule.symbol == tick.symbol) {
            if !live.fires(previous, price, tick.ts) {
                continue;
            }
            let Rule { symbol, id, trigger, op, note, .. } = live.rule;
            self.expected.notifications.insert(Notification {
                id: format!("{topic}/{partition}/{place}/{trigger}/{op}/{id}"),
                rule: id.clone(),
                symbol: symbol.clone(),
                trigger: (*trigger).to_owned(),
                op: (*op).to_owned(),
                threshold: live.threshold.to_string(),
                price: price.to_string(),
                previous: previous.map(|price| price.to_string()),
                ts: tick.ts,
                topic: topic.clone(),
                partition: *partition,
                offset,
                note: note.clone(),
            });
        }
    }

    fn count(
        &mut self,
        offset: i64,
        tick: &Tick,
        watermark: Option<i64>,
        revised: &mut BTreeSet<(String, usize, i64)>,
    ) {
        let (price, volume, ts) = (Decimal::price(&tick.price), Decimal::volume(&tick.volume), tick.ts);
        let mut late_for = Vec::new();
        for (number, name) in self.settings.intervals.iter().enumerate() {
            let (start, end) = window(name, ts);
            let late = watermark.is_some_and(|watermark| end <= watermark);
            if late {
                late_for.push(name.as_str());
                let reach = watermark.map_or(i64::MIN, |watermark| watermark - self.settings.keep);
                if self.settings.late != Late::Revise || end <= reach {
                    continue;
                }
                revised.insert((tick.symbol.clone(), number, start));
            }
            let ticks = self.windows.entry((tick.symbol.clone(), number, start)).or_default();
            ticks.push(WindowTick { price, volume, ts, late });
        }
        if late_for.is_empty() {
            return;
        }
        self.expected.late += 1;
        if self.settings.late == Late::Divert {
            self.expected.diverted.insert(Diverted {
                offset,
                symbol: tick.symbol.clone(),
                price: price.to_string(),
                volume: volume.to_string(),
                ts,
                intervals: late_for.join(" "),
            });
        }
    }

    /// Sends the candle of those of a window's ticks that are `counted`.
    fn send(
        &mut self,
        window: &(String, usize, i64),
        status: &str,
        revision: i64,
        counted: impl Fn(&WindowTick) -> bool,
    ) {
        let ticks: Vec<WindowTick> = self.windows[window].iter().copied().filter(counted).collect();
        let (symbol, number, start) = window;
        let interval = &self.settings.intervals[*number];
        // `min_by_key` takes the first of equals, `max_by_key` the last: log order decides among equal times.
        let (Some(open), Some(close)) =
            (ticks.iter().min_by_key(|tick| tick.ts), ticks.iter().max_by_key(|tick| tick.ts))
        else {
            return;
        };
        let prices = || ticks.iter().map(|tick| tick.price);
        let candle = Candle {
            symbol: symbol.clone(),
            interval: interval.clone(),
            start: *start,
            end: self::window(interval, *start).1,
            open: open.price.to_string(),
            high: prices().max().unwrap_or(open.price).to_string(),
            low: prices().min().unwrap_or(open.price).to_string(),
            close: close.price.to_string(),
            volume: Decimal(ticks.iter().map(|tick| tick.volume.0).sum()).to_string(),
            count: ticks.len() as u64,
            status: status.to_owned(),
            revision,
        };
        let stored = (symbol.clone(), interval.clone(), *start);
        if self.expected.stored.get(&stored).is_none_or(|before| before.revision < revision) {
            self.expected.stored.insert(stored, candle.clone());
        }
        self.expected.candles.insert(candle);
    }

    fn finish(mut self) -> Expected {
        let windows: Vec<_> = self.windows.keys().cloned().collect();
        for window in windows {
            self.send(&window, "final", 0, |tick| !tick.late);
        }
        self.expected.last =
            self.last.iter().map(|(symbol, (price, ts))| (symbol.clone(), (price.to_string(), *ts))).collect();
        self.expected
    }
}

/// The window of an interval such as `1m` that holds `ts`: start and end, ms.
pub(crate) fn window(interval: &str, ts: i64) -> (i64, i64) {
    const FIRST_MONDAY: i64 = 4 * 86_400_000;
    let digits = interval.find(|c: char| !c.is_ascii_digit()).expect("an interval has a unit");
    let number: i64 = interval[..digits].parse().expect("an interval starts with a number");
    let (unit, origin) = match &interval[digits..] {
        "ms" => (1, 0),
        "s" => (1_000, 0),
        "m" => (60_000, 0),
        "h" => (3_600_000, 0),
        "d" => (86_400_000, 0),
        "w" => (7 * 86_400_000, FIRST_MONDAY),
        unit => panic!("{unit} is no unit"),
    };
    let length = number * unit;
    let start = (ts - origin).div_euclid(length) * length + origin;
    (start, start + length)
}

/// A number in units of 1e-18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decimal(pub(crate) i128);

const ONE: i128 = 1_000_000_000_000_000_000;

impl Decimal {
    /// A price has 15 significant digits; more are rounded half-even.
    pub(crate) fn price(text: &str) -> Decimal {
        const DIGITS: u32 = 15;
        let exact = Decimal::exact(text);
        let digits = exact.0.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
        let unit = 10_i128.pow(digits.saturating_sub(DIGITS));
        let (quotient, rest) = (exact.0.div_euclid(unit), exact.0.rem_euclid(unit));
        let up = rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0);
        Decimal((quotient + i128::from(up)) * unit)
    }

    pub(crate) fn volume(text: &str) -> Decimal {
        Decimal::exact(text)
    }

    /// Plain text: an optional sign, digits, at most 18 decimals.
    fn exact(text: &str) -> Decimal {
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        assert!(fraction.len() <= 18, "{text} has more than 18 decimals");
        let units = format!("{whole}{fraction:0<18}").parse::<i128>();
        Decimal(sign * units.unwrap_or_else(|_| panic!("{text} is no plain decimal")))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, fraction) = (self.0.abs() / ONE, self.0.abs() % ONE);
        let text = format!("{sign}{whole}.{fraction:018}");
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A number in a record: a JSON number or text, kept as it was written.
#[derive(Deserialize)]
#[serde(transparent)]
struct Number(Box<RawValue>);

impl Number {
    fn text(&self) -> anyhow::Result<String> {
        let raw = self.0.get();
        let text = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw);
        ensure!(
            !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '-'),
            "{raw} is no plain decimal"
        );
        Ok(text.to_owned())
    }
}

impl Notification {
    /// Reads a record's value.
    pub(crate) fn parse(value: &str) -> anyhow::Result<Notification> {
        #[derive(Deserialize)]
        struct Value {
            id: String,
            rule: String,
            symbol: String,
            trigger: String,
            op: String,
            threshold: Number,
            price: Number,
            previous: Option<Number>,
            ts: i64,
            source: Source,
            note: Option<String>,
        }
        #[derive(Deserialize)]
        struct Source {
            topic: String,
            partition: i32,
            offset: i64,
        }
        let value: Value = serde_json::from_str(value).with_context(|| format!("no notification: {value}"))?;
        Ok(Notification {
            id: value.id,
            rule: value.rule,
            symbol: value.symbol,
            trigger: value.trigger,
            op: value.op,
            threshold: value.threshold.text()?,
            price: value.price.text()?,
            previous: value.previous.map(|number| number.text()).transpose()?,
            ts: value.ts,
            topic: value.source.topic,
            partition: value.source.partition,
            offset: value.source.offset,
            note: value.note,
        })
    }
}

impl Candle {
    /// Reads a record's value.
    pub(crate) fn parse(value: &str) -> anyhow::Result<Candle> {
        #[derive(Deserialize)]
        struct Value {
            symbol: String,
            interval: String,
            start: i64,
            end: i64,
            open: Number,
            high: Number,
            low: Number,
            close: Number,
            volume: Number,
            count: u64,
            status: String,
            revision: i64,
        }
        let value: Value = serde_json::from_str(value).with_context(|| format!("no candle: {value}"))?;
        Ok(Candle {
            symbol: value.symbol,
            interval: value.interval,
            start: value.start,
            end: value.end,
            open: value.open.text()?,
            high: value.high.text()?,
            low: value.low.text()?,
            close: value.close.text()?,
            volume: value.volume.text()?,
            count: value.count,
            status: value.status,
            revision: value.revision,
        })
    }
}
