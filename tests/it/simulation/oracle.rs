//! What the log means, reckoned plainly and in one piece: tick by tick in whole numbers, with no batches, no owners
//! and nothing from the crate but its words.

use std::collections::{BTreeMap, BTreeSet};

use tickwatch::config::LatePolicy;

use super::log::{SimTick, Slot};

/// An edge or level rule of the simulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimRule {
    pub(super) symbol: &'static str,
    pub(super) edge: bool,
    pub(super) op: &'static str,
    pub(super) threshold: i64,
    pub(super) id: &'static str,
    pub(super) once: bool,
    /// ms of event time.
    pub(super) cooldown: Option<i64>,
}

const RULE: SimRule =
    SimRule { symbol: "A", edge: true, op: ">=", threshold: 0, id: "", once: false, cooldown: None };

pub(super) const RULES: [SimRule; 7] = [
    SimRule { threshold: 3, id: "low", ..RULE },
    SimRule { threshold: 6, id: "high", ..RULE },
    SimRule { op: "<", threshold: 2, id: "down", ..RULE },
    SimRule { threshold: 8, id: "once", once: true, ..RULE },
    SimRule { edge: false, op: ">", threshold: 6, id: "calm", cooldown: Some(4_000), ..RULE },
    SimRule { symbol: "B", threshold: 5, id: "half way", ..RULE },
    SimRule { symbol: "B", edge: false, op: "=", threshold: 4, id: "four", ..RULE },
];

impl SimRule {
    fn matches(&self, price: i64) -> bool {
        match self.op {
            "<" => price < self.threshold,
            "=" => price == self.threshold,
            ">=" => price >= self.threshold,
            ">" => price > self.threshold,
            op => unreachable!("no rule here has {op}"),
        }
    }

    fn fires(&self, previous: Option<i64>, price: i64) -> bool {
        self.matches(price) && (!self.edge || previous.is_some_and(|previous| !self.matches(previous)))
    }
}

/// Names an output; the same on every attempt to send it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Offset, tick within the record, rule.
    Notification(i64, u32, String),
    /// Symbol, length of the interval, start, revision.
    Candle(String, i64, i64, i64),
    /// Offset, tick within the record.
    Late(i64, u32),
    /// Offset.
    DeadLetter(i64),
}

/// Symbol, length of the interval (ms), start.
pub(super) type WindowKey = (String, i64, i64);

/// A candle in whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SimCandle {
    pub(super) open: i64,
    pub(super) high: i64,
    pub(super) low: i64,
    pub(super) close: i64,
    pub(super) volume: i64,
    pub(super) count: i64,
    pub(super) open_ts: i64,
    pub(super) close_ts: i64,
    pub(super) revision: i64,
    pub(super) closed: bool,
}

impl SimCandle {
    fn new(tick: &SimTick) -> SimCandle {
        let (price, ts) = (tick.price, tick.ts);
        SimCandle {
            open: price,
            high: price,
            low: price,
            close: price,
            volume: 0,
            count: 0,
            open_ts: ts,
            close_ts: ts,
            revision: 0,
            closed: false,
        }
    }

    fn add(&mut self, tick: &SimTick) {
        if tick.ts < self.open_ts {
            (self.open, self.open_ts) = (tick.price, tick.ts);
        }
        if tick.ts >= self.close_ts {
            (self.close, self.close_ts) = (tick.price, tick.ts);
        }
        self.high = self.high.max(tick.price);
        self.low = self.low.min(tick.price);
        self.volume += tick.volume;
        self.count += 1;
    }

    /// What readers see of it.
    pub(super) fn content(&self) -> String {
        let SimCandle { open, high, low, close, volume, count, .. } = self;
        format!("{open} {high} {low} {close} {volume} {count}")
    }
}

/// What decides how ticks become candles.
#[derive(Debug, Clone)]
pub(super) struct Meaning {
    /// Lengths of the intervals, ms.
    pub(super) intervals: Vec<i64>,
    pub(super) lateness: i64,
    pub(super) late: LatePolicy,
    pub(super) keep: i64,
}

/// The state and the outputs that a log makes.
#[derive(Debug)]
pub(super) struct Oracle {
    meaning: Meaning,
    pub(super) watermark: i64,
    max_ts: i64,
    /// Price and event time by symbol.
    pub(super) last: BTreeMap<String, (i64, i64)>,
    pub(super) candles: BTreeMap<WindowKey, SimCandle>,
    pub(super) outputs: BTreeMap<Key, String>,
    pub(super) rules_gone: BTreeSet<&'static str>,
    fired: BTreeMap<&'static str, i64>,
}

impl Oracle {
    /// Runs the log. `advances`: the watermark was raised to (second) when the state was at offset (first).
    pub(super) fn run(meaning: Meaning, log: &[Slot], advances: &[(i64, i64)]) -> Oracle {
        let mut oracle = Oracle {
            meaning,
            watermark: i64::MIN,
            max_ts: i64::MIN,
            last: BTreeMap::new(),
            candles: BTreeMap::new(),
            outputs: BTreeMap::new(),
            rules_gone: BTreeSet::new(),
            fired: BTreeMap::new(),
        };
        let mut advances = advances.iter().peekable();
        for offset in 0..=log.len() as i64 {
            while let Some((_, watermark)) = advances.next_if(|(at, _)| *at == offset) {
                oracle.raise(*watermark);
            }
            if let Some(slot) = log.get(offset as usize) {
                oracle.record(offset, slot);
            }
        }
        assert!(advances.next().is_none(), "advances in the order of the log");
        oracle
    }

    fn record(&mut self, offset: i64, slot: &Slot) {
        match slot {
            Slot::Gap => {}
            Slot::Bad | Slot::Future(_) => {
                self.outputs.insert(Key::DeadLetter(offset), String::new());
            }
            Slot::Ticks(ticks) => {
                for (index, tick) in ticks.iter().enumerate() {
                    self.price(offset, index as u32, tick);
                    self.candles_of(offset, index as u32, tick);
                }
                let newest = ticks.iter().map(|tick| tick.ts).max();
                self.max_ts = self.max_ts.max(newest.unwrap_or(i64::MIN));
                self.raise(self.max_ts.saturating_sub(self.meaning.lateness));
            }
        }
    }

    fn price(&mut self, offset: i64, index: u32, tick: &SimTick) {
        let last = self.last.get(tick.symbol).copied();
        if last.is_some_and(|(_, ts)| tick.ts < ts) {
            return;
        }
        self.last.insert(tick.symbol.to_owned(), (tick.price, tick.ts));
        let previous = last.map(|(price, _)| price);
        for rule in RULES.iter().filter(|rule| rule.symbol == tick.symbol) {
            let calm = rule
                .cooldown
                .is_some_and(|cooldown| self.fired.get(rule.id).is_some_and(|fired| tick.ts - fired < cooldown));
            if self.rules_gone.contains(rule.id) || calm || !rule.fires(previous, tick.price) {
                continue;
            }
            if rule.once {
                self.rules_gone.insert(rule.id);
            }
            self.fired.insert(rule.id, tick.ts);
            let content = format!("{} {previous:?} {}", tick.price, tick.ts);
            self.outputs.insert(Key::Notification(offset, index, rule.id.to_owned()), content);
        }
    }

    fn candles_of(&mut self, offset: i64, index: u32, tick: &SimTick) {
        let mut late = false;
        for interval in self.meaning.intervals.clone() {
            let start = tick.ts - tick.ts.rem_euclid(interval);
            let end = start + interval;
            let is_late = end <= self.watermark;
            late |= is_late;
            let reached =
                self.meaning.late == LatePolicy::Revise && end > self.watermark.saturating_sub(self.meaning.keep);
            if is_late && !reached {
                continue;
            }
            let key = (tick.symbol.to_owned(), interval, start);
            let candle = self.candles.entry(key).or_insert_with(|| SimCandle::new(tick));
            candle.add(tick);
            if is_late {
                (candle.revision, candle.closed) = (offset + 1, true);
                let key = Key::Candle(tick.symbol.to_owned(), interval, start, offset + 1);
                self.outputs.insert(key, candle.content()); // the record's last tick for this window has the last word
            }
        }
        if late && self.meaning.late == LatePolicy::Divert {
            let content = format!("{} {} {} {}", tick.symbol, tick.price, tick.volume, tick.ts);
            self.outputs.insert(Key::Late(offset, index), content);
        }
    }

    fn raise(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(watermark);
        for ((symbol, interval, start), candle) in &mut self.candles {
            if !candle.closed && start + interval <= self.watermark {
                candle.closed = true;
                self.outputs.insert(Key::Candle(symbol.clone(), *interval, *start, 0), candle.content());
            }
        }
    }
}
