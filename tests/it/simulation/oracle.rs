//! What the log means, reckoned plainly and in one piece: tick by tick in whole numbers, with no batches, no owners
//! and nothing from the crate but its words.

use std::collections::{BTreeMap, BTreeSet};

use tickwatch::config::LatePolicy;
use tickwatch::domain::Position;

use super::log::{SimTick, Slot, Topic};

/// An edge or level rule of the simulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimRule {
    /// Index of the symbol in its partition.
    pub(super) symbol: usize,
    pub(super) edge: bool,
    pub(super) op: &'static str,
    pub(super) threshold: i64,
    pub(super) id: &'static str,
    pub(super) once: bool,
    /// ms of event time.
    pub(super) cooldown: Option<i64>,
}

const RULE: SimRule =
    SimRule { symbol: 0, edge: true, op: ">=", threshold: 0, id: "", once: false, cooldown: None };

/// Rules of every partition, each with an id of its own.
pub(super) const RULES: [SimRule; 7] = [
    SimRule { threshold: 3, id: "low", ..RULE },
    SimRule { threshold: 6, id: "high", ..RULE },
    SimRule { op: "<", threshold: 2, id: "down", ..RULE },
    SimRule { threshold: 8, id: "once", once: true, ..RULE },
    SimRule { edge: false, op: ">", threshold: 6, id: "calm", cooldown: Some(4_000), ..RULE },
    SimRule { symbol: 1, threshold: 5, id: "half way", ..RULE },
    SimRule { symbol: 1, edge: false, op: "=", threshold: 4, id: "four", ..RULE },
];

/// Number of the rule with this id in [`RULES`].
pub(super) fn rule_number(id: &str) -> usize {
    RULES.iter().position(|rule| rule.id == id).expect("one of RULES")
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Offset, tick within the record, number of the rule.
    Notification(i64, u32, usize),
    /// Symbol, length of the interval, start, revision.
    Candle(usize, i64, i64, i64),
    /// Symbol, length of the interval, start, the offset below which it holds every tick.
    Update(usize, i64, i64, i64),
    /// Offset, tick within the record.
    Late(i64, u32),
    /// Offset.
    DeadLetter(i64),
}

impl Key {
    /// Whether it was delivered, by the one rule of the protocol.
    pub(super) fn is_delivered(self, delivered: Position) -> bool {
        match self {
            Key::Candle(_, interval, start, 0) => delivered.watermark.passes(start + interval),
            Key::Update(_, interval, start, offset) => {
                offset < delivered.offset.0
                    || (offset == delivered.offset.0 && delivered.updates)
                    || delivered.watermark.passes(start + interval)
            }
            Key::Candle(.., revision) => revision - 1 < delivered.offset.0,
            Key::Notification(offset, ..) | Key::Late(offset, _) | Key::DeadLetter(offset) => {
                offset < delivered.offset.0
            }
        }
    }

    /// Whether the record behind it is below the log's start, or of a topic that is gone.
    pub(super) fn is_without_record(self, start: i64, gone: bool) -> bool {
        gone || matches!(self, Key::DeadLetter(offset) if offset < start)
    }

    /// Whether it follows from the records alone, whatever the watermark was at them.
    pub(super) fn is_by_the_log_alone(self) -> bool {
        matches!(self, Key::Notification(..) | Key::DeadLetter(_))
    }
}

/// What an output says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// Price, previous price, event time.
    Notification(i64, Option<i64>, i64),
    /// Open, high, low, close, volume, count.
    Candle([i64; 6]),
    /// Symbol, price, volume, event time.
    Late(usize, i64, i64, i64),
    DeadLetter(Why),
}

/// Why a record is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    Bad,
    Future,
    Poisoned,
}

/// Symbol, length of the interval (ms), start.
pub(super) type WindowKey = (usize, i64, i64);

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
    pub(super) fn content(&self) -> Content {
        let SimCandle { open, high, low, close, volume, count, .. } = *self;
        Content::Candle([open, high, low, close, volume, count])
    }
}

/// What decides how ticks become candles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meaning {
    pub(super) lateness: i64,
    pub(super) late: LatePolicy,
    pub(super) keep: i64,
    /// A symbol with a key of the wrong type, from the first tick on.
    pub(super) poisoned: Option<usize>,
    /// Open candles are sent too.
    pub(super) updates: bool,
}

/// What a state went through that is not on the log, in the order of its offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    /// It began here, empty.
    Began(i64),
    /// Time passed without ticks: at this offset, to this watermark.
    Advanced(i64, i64),
    /// Retention had deleted these offsets before they were processed.
    Skipped(i64, i64),
    /// The topic was made again: the state was at the first offset, and reads its incarnation of this number from the
    /// last offset on. What was pending is dropped.
    MadeAgain(i64, usize, i64),
}

/// The state and the outputs that a log makes.
#[derive(Debug)]
pub(super) struct Oracle<'a> {
    meaning: Meaning,
    intervals: &'a [i64],
    topics: &'a [Topic],
    /// The incarnation that is being read, and the next offset.
    topic: usize,
    offset: i64,
    pub(super) watermark: i64,
    max_ts: i64,
    /// Price and event time by symbol.
    pub(super) last: BTreeMap<usize, (i64, i64)>,
    pub(super) candles: BTreeMap<WindowKey, SimCandle>,
    /// Windows that wait to be closed.
    open: BTreeSet<(i64, WindowKey)>,
    /// By incarnation of the topic, and key.
    pub(super) outputs: BTreeMap<(usize, Key), Content>,
    /// Every window with all its ticks, late or not, as it stood after each of them: a window that is open has had no
    /// late tick. By the next offset.
    standing: BTreeMap<(usize, WindowKey), (SimCandle, BTreeMap<i64, Content>)>,
    pub(super) rules_gone: BTreeSet<usize>,
    fired: BTreeMap<usize, i64>,
}

impl Oracle<'_> {
    /// Runs the log as far as `end`, an offset of the last incarnation in `happenings`.
    pub(super) fn run<'a>(
        meaning: Meaning,
        intervals: &'a [i64],
        topics: &'a [Topic],
        happenings: &[Happening],
        end: i64,
    ) -> Oracle<'a> {
        let mut oracle = Oracle {
            meaning,
            intervals,
            topics,
            topic: 0,
            offset: 0,
            watermark: i64::MIN,
            max_ts: i64::MIN,
            last: BTreeMap::new(),
            candles: BTreeMap::new(),
            open: BTreeSet::new(),
            outputs: BTreeMap::new(),
            standing: BTreeMap::new(),
            rules_gone: BTreeSet::new(),
            fired: BTreeMap::new(),
        };
        for happening in happenings {
            oracle.go_through(*happening);
        }
        oracle.read_to(end);
        oracle
    }

    /// What an update says of a window with the ticks of all offsets below `offset`.
    pub(super) fn stood(&self, topic: usize, window: WindowKey, offset: i64) -> Option<Content> {
        let (_, stood) = self.standing.get(&(topic, window))?;
        stood.range(..=offset).next_back().map(|(_, content)| *content)
    }

    fn go_through(&mut self, happening: Happening) {
        match happening {
            Happening::Began(at) => self.offset = at,
            Happening::Advanced(at, watermark) => {
                self.read_to(at);
                self.raise(watermark);
            }
            Happening::Skipped(from, to) => {
                self.read_to(from);
                self.offset = to;
            }
            // Prices, candles and rules are the users' and stay; what was pending belongs to the topic of before.
            Happening::MadeAgain(at, topic, start) => {
                self.read_to(at);
                (self.topic, self.offset) = (topic, start);
                (self.watermark, self.max_ts) = (i64::MIN, i64::MIN);
                self.open.clear();
            }
        }
    }

    fn read_to(&mut self, end: i64) {
        let slots = &self.topics[self.topic].slots;
        while self.offset < end {
            self.record(self.offset, &slots[self.offset as usize]);
            self.offset += 1;
        }
    }

    fn put_out(&mut self, key: Key, content: Content) {
        self.outputs.insert((self.topic, key), content);
    }

    fn record(&mut self, offset: i64, slot: &Slot) {
        match slot {
            Slot::Gap => {}
            Slot::Bad => self.put_out(Key::DeadLetter(offset), Content::DeadLetter(Why::Bad)),
            Slot::Future(_) => self.put_out(Key::DeadLetter(offset), Content::DeadLetter(Why::Future)),
            Slot::Ticks(ticks) => {
                for (index, tick) in ticks.iter().enumerate() {
                    let poisoned = self.meaning.poisoned == Some(tick.symbol);
                    if poisoned {
                        self.put_out(Key::DeadLetter(offset), Content::DeadLetter(Why::Poisoned));
                    } else {
                        self.price(offset, index as u32, tick);
                    }
                    self.candles_of(offset, index as u32, tick, poisoned);
                }
                let newest = ticks.iter().map(|tick| tick.ts).max();
                self.max_ts = self.max_ts.max(newest.unwrap_or(i64::MIN));
                self.raise(self.max_ts.saturating_sub(self.meaning.lateness));
            }
        }
    }

    fn price(&mut self, offset: i64, index: u32, tick: &SimTick) {
        let last = self.last.get(&tick.symbol).copied();
        if last.is_some_and(|(_, ts)| tick.ts < ts) {
            return;
        }
        self.last.insert(tick.symbol, (tick.price, tick.ts));
        let previous = last.map(|(price, _)| price);
        for (number, rule) in RULES.iter().enumerate().filter(|(_, rule)| rule.symbol == tick.symbol) {
            let calm = rule
                .cooldown
                .is_some_and(|cooldown| self.fired.get(&number).is_some_and(|fired| tick.ts - fired < cooldown));
            if self.rules_gone.contains(&number) || calm || !rule.fires(previous, tick.price) {
                continue;
            }
            if rule.once {
                self.rules_gone.insert(number);
            }
            self.fired.insert(number, tick.ts);
            let content = Content::Notification(tick.price, previous, tick.ts);
            self.put_out(Key::Notification(offset, index, number), content);
        }
    }

    fn candles_of(&mut self, offset: i64, index: u32, tick: &SimTick, poisoned: bool) {
        let mut late = false;
        for interval in self.intervals {
            let start = tick.ts - tick.ts.rem_euclid(*interval);
            let end = start + interval;
            let window = (tick.symbol, *interval, start);
            if self.meaning.updates && !poisoned {
                let stands = self.standing.entry((self.topic, window));
                let (candle, stood) = stands.or_insert_with(|| (SimCandle::new(tick), BTreeMap::new()));
                candle.add(tick);
                stood.insert(offset + 1, candle.content());
            }
            let is_late = end <= self.watermark;
            late |= is_late;
            let reached =
                self.meaning.late == LatePolicy::Revise && end > self.watermark.saturating_sub(self.meaning.keep);
            if poisoned || (is_late && !reached) {
                continue;
            }
            let candle = self.candles.entry(window).or_insert_with(|| SimCandle::new(tick));
            candle.add(tick);
            if is_late {
                (candle.revision, candle.closed) = (offset + 1, true);
                let content = candle.content(); // the record's last tick for this window has the last word
                self.put_out(Key::Candle(tick.symbol, *interval, start, offset + 1), content);
            } else {
                self.open.insert((end, window));
            }
        }
        if late && self.meaning.late == LatePolicy::Divert {
            let content = Content::Late(tick.symbol, tick.price, tick.volume, tick.ts);
            self.put_out(Key::Late(offset, index), content);
        }
    }

    fn raise(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(watermark);
        while self.open.first().is_some_and(|(end, _)| *end <= self.watermark) {
            let Some((_, window)) = self.open.pop_first() else { return };
            let candle = self.candles.get_mut(&window).expect("an open window has its candle");
            candle.closed = true;
            let content = candle.content();
            self.put_out(Key::Candle(window.0, window.1, window.2, 0), content);
        }
    }
}
