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

use crate::harness::{Case, Needs, Stage, cases};

/// The oracle itself, on what can be worked out by hand, and against the reference of the scripts.
pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Nothing;
        a_crossing_is_expected_once_with_both_prices,
        a_final_candle_holds_what_was_there_when_time_passed_it_and_late_ticks_revise_it,
        numbers_are_rounded_and_summed_exactly,
        the_oracle_expects_what_the_reference_sends,
    )
}

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
    let mut oracle = Oracle {
        settings,
        rules: rules.iter().map(LiveRule::new).collect(),
        last: BTreeMap::new(),
        windows: BTreeMap::new(),
        watermark: None,
        expected: Expected::default(),
    };
    for record in log {
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
fn window(interval: &str, ts: i64) -> (i64, i64) {
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
struct Decimal(i128);

const ONE: i128 = 1_000_000_000_000_000_000;

impl Decimal {
    /// A price has 15 significant digits; more are rounded half-even.
    fn price(text: &str) -> Decimal {
        const DIGITS: u32 = 15;
        let exact = Decimal::exact(text);
        let digits = exact.0.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
        let unit = 10_i128.pow(digits.saturating_sub(DIGITS));
        let (quotient, rest) = (exact.0.div_euclid(unit), exact.0.rem_euclid(unit));
        let up = rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0);
        Decimal((quotient + i128::from(up)) * unit)
    }

    fn volume(text: &str) -> Decimal {
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

fn sample(late: Late) -> Settings {
    Settings {
        topic: "ticks".to_owned(),
        partition: 0,
        intervals: vec!["1s".to_owned()],
        lateness: 500,
        late,
        keep: 86_400_000,
    }
}

/// A record a tick: (ts, price, volume).
fn log_of(ticks: &[(i64, &str, &str)]) -> Vec<LogRecord> {
    let tick = |(ts, price, volume): &(i64, &str, &str)| Tick {
        symbol: "X".to_owned(),
        price: (*price).to_owned(),
        volume: (*volume).to_owned(),
        ts: *ts,
    };
    (0..).zip(ticks).map(|(offset, sent)| LogRecord { offset, ticks: vec![tick(sent)] }).collect()
}

fn a_crossing_is_expected_once_with_both_prices(_: &Stage) -> anyhow::Result<()> {
    let rule = Rule {
        symbol: "X".to_owned(),
        id: "a b".to_owned(),
        trigger: "edge",
        op: ">=",
        threshold: "100".to_owned(),
        ..Rule::default()
    };
    let log = log_of(&[(0, "99", "1"), (1, "100.50", "1"), (2, "101", "1"), (1, "99", "1")]);
    let expected = expected(&sample(Late::Drop), &[rule], &log);
    let record = r#"{"id":"ticks/0/1/edge/>=/a b","rule":"a b","symbol":"X","trigger":"edge","op":">=",
        "threshold":100,"price":"100.5","previous":99,"ts":1,"source":{"topic":"ticks","partition":0,"offset":1}}"#;
    assert_eq!(expected.notifications, BTreeSet::from([Notification::parse(record)?]));
    assert_eq!(expected.out_of_order, 1);
    assert_eq!(expected.last["X"], ("101".to_owned(), 2));
    Ok(())
}

fn a_final_candle_holds_what_was_there_when_time_passed_it_and_late_ticks_revise_it(
    _: &Stage,
) -> anyhow::Result<()> {
    // Offset 2 takes the watermark to 1000; offset 3 is late for the first second.
    let log = log_of(&[(200, "2", "1"), (100, "1", "0.5"), (1500, "3", "1"), (50, "9", "2")]);
    let final_candle = r#"{"symbol":"X","interval":"1s","start":0,"end":1000,"open":1,"high":2,"low":1,"close":2,
        "volume":1.5,"count":2,"status":"final","revision":0}"#;
    let revision = r#"{"symbol":"X","interval":"1s","start":0,"end":1000,"open":9,"high":9,"low":1,"close":2,
        "volume":3.5,"count":3,"status":"revised","revision":4}"#;
    let (final_candle, revision) = (Candle::parse(final_candle)?, Candle::parse(revision)?);
    let of_first = |expected: &Expected| -> Vec<Candle> {
        expected.candles.iter().filter(|candle| candle.start == 0).cloned().collect()
    };

    let dropped = expected(&sample(Late::Drop), &[], &log);
    assert_eq!(of_first(&dropped), [final_candle.clone()]);
    assert_eq!((dropped.late, dropped.candles.len()), (1, 2));

    let diverted = expected(&sample(Late::Divert), &[], &log);
    assert_eq!(of_first(&diverted), [final_candle.clone()]);
    assert_eq!(diverted.diverted.first().map(|tick| (tick.offset, tick.intervals.as_str())), Some((3, "1s")));

    let revised = expected(&sample(Late::Revise), &[], &log);
    assert!(revised.candles.contains(&final_candle) && revised.candles.contains(&revision));
    assert_eq!(revised.stored[&("X".to_owned(), "1s".to_owned(), 0)], revision);
    Ok(())
}

fn numbers_are_rounded_and_summed_exactly(_: &Stage) -> anyhow::Result<()> {
    for (sent, price) in [
        ("0.30000000000000004", "0.3"),
        ("10.000000000000001", "10"),
        ("1.000000000000005", "1"),
        ("1.000000000000015", "1.00000000000002"),
        ("-1.000000000000005", "-1"),
        ("0", "0"),
        ("9505.50", "9505.5"),
    ] {
        assert_eq!(Decimal::price(sent).to_string(), price, "{sent}");
    }
    let sum = Decimal(Decimal::volume("5200").0 + Decimal::volume("10.43").0);
    assert_eq!(sum.to_string(), "5210.43");
    Ok(())
}

fn the_oracle_expects_what_the_reference_sends(_: &Stage) -> anyhow::Result<()> {
    crate::scripts::for_each_seed(300, agreement::of_one_log);
    Ok(())
}

/// The reference applies a random log in random batches; what it sends is written as records.
mod agreement {
    use std::borrow::Cow;
    use std::collections::BTreeSet;

    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use tickwatch::config::LatePolicy;
    use tickwatch::domain::reference::{Applied, Limits, Reference, RuleOptions};
    use tickwatch::domain::{Entry, Offset, Output, Watermark};

    use super::{Candle, Diverted, Expected, Late, LogRecord, Notification, Rule, Settings, Tick};
    use crate::scripts::log::{self, BEGIN, Content, STEP, SYMBOLS, pick, random_log, random_price};

    pub(super) fn of_one_log(rng: &mut StdRng) {
        let settings = log::Settings::random(rng);
        let symbols = &SYMBOLS[..3];
        let log = random_log(rng, symbols, 150);
        let rules: Vec<Rule> = (0..12).map(|number| random_rule(rng, symbols, number)).collect();
        let limits = Limits { max_matches: usize::MAX, max_outputs: usize::MAX };
        let mut reference = Reference::new(Offset(0), limits, |symbol| Cow::Borrowed(symbol));
        for rule in &rules {
            put(&mut reference, rule);
        }

        let mut sent = Vec::new();
        let mut applied = 0;
        while applied < log.len() {
            let most = rng.random_range(1..10);
            let (batch, taken) = settings.batch(&log[applied..], reference.position, most);
            let Applied::Done(entries) = reference.apply(&batch, taken == 1) else { panic!("all was closed") };
            sent.extend(entries);
            sent.extend(reference.close(usize::MAX).entries);
            applied += taken;
        }
        reference.advance(Watermark::at(BEGIN + 1_000_000_000));
        sent.extend(reference.close(usize::MAX).entries);

        let expected = super::expected(&settings_of(&settings), &rules, &log_of(&log));
        assert_eq!(notifications(&sent), expected.notifications);
        assert_eq!(candles(&sent), expected.candles);
        assert_eq!(diverted(&sent), expected.diverted);
        assert_state(&reference, &expected);
    }

    fn assert_state(reference: &Reference, expected: &Expected) {
        assert_eq!((reference.totals.late, reference.totals.out_of_order), (expected.late, expected.out_of_order));
        let mut stored = 0;
        for (name, symbol) in &reference.symbols {
            let last = symbol.last.map(|last| (last.price.to_string(), last.ts));
            assert_eq!(last.as_ref(), expected.last.get(&**name), "{name}");
            for ((interval, start), candle) in &symbol.candles {
                let expected = &expected.stored[&(name.to_string(), interval.to_string(), *start)];
                assert_eq!((candle.revision, candle.count), (expected.revision, expected.count));
                stored += 1;
            }
        }
        assert_eq!(stored, expected.stored.len());
    }

    fn settings_of(settings: &log::Settings) -> Settings {
        Settings {
            topic: "ticks".to_owned(),
            partition: 0,
            intervals: settings.intervals.iter().map(ToString::to_string).collect(),
            lateness: settings.lateness,
            late: match settings.late {
                LatePolicy::Drop => Late::Drop,
                LatePolicy::Divert => Late::Divert,
                LatePolicy::Revise => Late::Revise,
            },
            keep: settings.keep,
        }
    }

    fn log_of(log: &[log::LogRecord]) -> Vec<LogRecord> {
        let ticks_of = |record: &log::LogRecord| match &record.content {
            Content::Ticks(ticks) => ticks.iter().map(tick_of).collect(),
            Content::Future | Content::Undecodable => Vec::new(),
        };
        log.iter().map(|record| LogRecord { offset: record.offset, ticks: ticks_of(record) }).collect()
    }

    fn tick_of(tick: &log::LogTick) -> Tick {
        Tick {
            symbol: tick.symbol.to_owned(),
            price: tick.price.to_string(),
            volume: tick.volume.to_string(),
            ts: tick.ts,
        }
    }

    fn random_rule(rng: &mut StdRng, symbols: &[&'static str], number: usize) -> Rule {
        Rule {
            symbol: pick::<&str>(rng, symbols).to_string(),
            id: format!("rule {number}"),
            trigger: pick::<&str>(rng, &["edge", "level"]),
            op: pick::<&str>(rng, &["<", "<=", "=", ">=", ">"]),
            threshold: random_price(rng).to_string(),
            once: rng.random_ratio(1, 4),
            cooldown: rng.random_ratio(1, 4).then(|| STEP * rng.random_range(0..30)),
            expires: rng.random_ratio(1, 4).then(|| BEGIN + STEP * rng.random_range(0..300)),
            note: rng.random_ratio(1, 4).then(|| "a note".to_owned()),
        }
    }

    fn put(reference: &mut Reference, rule: &Rule) {
        let rules = &mut reference.symbols.entry(rule.symbol.as_str().into()).or_default().rules;
        let set = match (rule.trigger, rule.op) {
            ("edge", _) => &mut rules.edge,
            (_, "<" | "<=") => &mut rules.below,
            (_, "=") => &mut rules.equal,
            _ => &mut rules.above,
        };
        set.insert(format!("{} {}", rule.op, rule.id), log::price(&rule.threshold).to_f64());
        let Rule { once, cooldown, expires, note, .. } = rule.clone();
        rules.options.insert(rule.id.clone(), Some(RuleOptions { once, cooldown, expires, note }));
    }

    fn notifications(sent: &[Entry]) -> BTreeSet<Notification> {
        let record = |entry: &Entry| {
            let Output::Notification(fired) = &entry.output else { return None };
            let offset = entry.id.offset.0;
            let place = if fired.index == 0 { offset.to_string() } else { format!("{offset}.{}", fired.index) };
            Some(Notification {
                id: format!("ticks/0/{place}/{}/{}/{}", fired.trigger, fired.op, fired.rule),
                rule: fired.rule.clone(),
                symbol: fired.symbol.clone(),
                trigger: fired.trigger.to_string(),
                op: fired.op.to_string(),
                threshold: fired.threshold.to_string(),
                price: fired.price.to_string(),
                previous: fired.previous.map(|price| price.to_string()),
                ts: fired.ts,
                topic: "ticks".to_owned(),
                partition: 0,
                offset,
                note: fired.note.clone(),
            })
        };
        sent.iter().filter_map(record).collect()
    }

    fn candles(sent: &[Entry]) -> BTreeSet<Candle> {
        let record = |entry: &Entry| {
            let Output::Candle(candle) = &entry.output else { return None };
            Some(Candle {
                symbol: candle.symbol.clone(),
                interval: candle.interval.to_string(),
                start: candle.start,
                end: candle.end,
                open: candle.open.to_string(),
                high: candle.high.to_string(),
                low: candle.low.to_string(),
                close: candle.close.to_string(),
                volume: candle.volume.to_string(),
                count: candle.count,
                status: if candle.revision == 0 { "final" } else { "revised" }.to_owned(),
                revision: candle.revision,
            })
        };
        sent.iter().filter_map(record).collect()
    }

    fn diverted(sent: &[Entry]) -> BTreeSet<Diverted> {
        let record = |entry: &Entry| {
            let Output::Late(tick) = &entry.output else { return None };
            Some(Diverted {
                offset: entry.id.offset.0,
                symbol: tick.symbol.clone(),
                price: tick.price.to_string(),
                volume: tick.volume.to_string(),
                ts: tick.ts,
                intervals: tick.intervals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            })
        };
        sent.iter().filter_map(record).collect()
    }
}
