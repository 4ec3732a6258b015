//! The semantics of the service in plain Rust: the definition of what the scripts in `lua/` do to the state.
//!
//! Written to be read, not to be fast: every rule of the product about state is here once, and property tests
//! hold the scripts, on a real Redis, against it. Ownership (tokens, epochs) and expiry by the wall clock are
//! Redis's business and are left out; what is here follows from the log and the rules alone.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::output::{Candle, LateTick, Notification};
use super::{
    Batch, BatchTick, Entry, Extra, ExtraKind, Interval, Offset, Op, OutboxId, Output, Partial, Position, Price,
    RecordMark, SymbolBatch, Trigger, Volume, Watermark, Window,
};

/// The state of one source partition and of its symbols.
///
/// Fields are public so that a test can look at all of it, and move a symbol to another partition's state.
#[derive(Debug, Clone)]
pub struct Reference {
    /// Bounds on what one call does.
    pub limits: Limits,
    /// The state position: next offset to apply, and the watermark there.
    pub position: Position,
    /// Greatest event time of a tick that counted, ms.
    pub max_ts: Option<i64>,
    /// The last record applied.
    pub last_record: Option<RecordMark>,
    /// Running counts.
    pub totals: Totals,
    /// What is known of each symbol, by its name as users write it.
    pub symbols: BTreeMap<Box<str>, Symbol>,
    /// Symbols one of whose keys has the wrong type, with the reason: their records become dead letters, nothing else
    /// of them changes.
    pub poisoned: BTreeMap<Box<str>, String>,
    /// Windows still open, in the order in which they close.
    pub due: BTreeSet<Due>,
    /// Outputs not yet known to be delivered, oldest first.
    pub outbox: VecDeque<Entry>,
    /// Id of the newest entry that was ever in the outbox; trimming does not move it.
    pub tail: Option<OutboxId>,
    /// How a symbol is written in keys: it decides the order of windows that end together.
    key_form: fn(&str) -> Cow<'_, str>,
}

/// Bounds on what one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most rules one tick fires.
    pub max_matches: usize,
    /// Most outputs of a batch of more than one record.
    pub max_outputs: usize,
}

/// Running counts of a source partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ticks applied.
    pub ticks: u64,
    /// Ticks late for at least one window.
    pub late: u64,
    /// Ticks older than their symbol's last.
    pub out_of_order: u64,
    /// Notifications made.
    pub notifications: u64,
    /// Records sent to the dead-letter topic.
    pub dead_letters: u64,
    /// Firings refused because their tick had fired `max_matches` rules already.
    pub refused: u64,
}

/// What is known of one symbol.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Symbol {
    /// Its newest price, by event time; `None` before its first tick.
    pub last: Option<Last>,
    /// Its candles, open and closed, by interval and start (ms).
    pub candles: BTreeMap<(Interval, i64), StoredCandle>,
    /// Its rules.
    pub rules: Rules,
    /// Event time (ms) of the last firing, by rule id; only rules with a cooldown.
    pub fired: BTreeMap<String, i64>,
}

/// A symbol's newest price.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Last {
    /// The price.
    pub price: Price,
    /// Its event time, ms.
    pub ts: i64,
}

/// A symbol's rules, in the sets users write: member `<op> <rule id>` → threshold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Edge rules, any operator.
    pub edge: RuleSet,
    /// Level rules `>` and `>=`.
    pub above: RuleSet,
    /// Level rules `<` and `<=`.
    pub below: RuleSet,
    /// Level rules `=`.
    pub equal: RuleSet,
    /// Options by rule id; `None` if they do not parse: the rule is skipped.
    pub options: BTreeMap<String, Option<RuleOptions>>,
}

/// Member `<op> <rule id>` → threshold.
pub type RuleSet = BTreeMap<String, f64>;

/// Options of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleOptions {
    /// Fires once, then it is gone.
    pub once: bool,
    /// Least event time between two firings, ms.
    pub cooldown: Option<i64>,
    /// Event time (ms) from which on it does not fire.
    pub expires: Option<i64>,
    /// Text sent with its notifications.
    pub note: Option<String>,
}

/// A candle as it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredCandle {
    /// Price of the tick with the least (ts, offset).
    pub open: Price,
    /// Highest price.
    pub high: Price,
    /// Lowest price.
    pub low: Price,
    /// Price of the tick with the greatest (ts, offset).
    pub close: Price,
    /// Sum of volumes.
    pub volume: Volume,
    /// Number of ticks.
    pub count: u64,
    /// Event time of the tick behind `open`, ms.
    pub open_ts: i64,
    /// Event time of the tick behind `close`, ms.
    pub close_ts: i64,
    /// Where it is in its life.
    pub status: Status,
    /// Revision of what was sent last; 0 if that was the final candle, or if nothing was sent yet.
    pub revision: i64,
}

/// Where a candle is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Not sent yet.
    Open,
    /// Sent once, when its window closed.
    Final,
    /// Sent again since.
    Revised,
}

/// A window still open. Order: by end, then by the member of `tw:due`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// End of the window, ms.
    pub end: i64,
    /// `<SYM>:<interval>:<start>`, the symbol as in keys.
    pub member: String,
    /// The symbol.
    pub symbol: Box<str>,
    /// The interval.
    pub interval: Interval,
    /// Start of the window, ms.
    pub start: i64,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// It took effect; the outputs it appended.
    Done(Vec<Entry>),
    /// It does not start at the state position. Nothing changed.
    Moved,
    /// Open windows are at or below the watermark: close them first. Nothing changed.
    Due,
    /// It makes more outputs than one call may, and can be halved. Nothing changed.
    Split,
}

/// What closing did.
#[derive(Debug, Clone, PartialEq)]
pub struct Closed {
    /// The candles sealed.
    pub entries: Vec<Entry>,
    /// Whether more windows are due.
    pub more: bool,
}

impl Reference {
    /// The state of a partition that starts at `start`; `key_form` is how a symbol is written in keys.
    pub fn new(start: Offset, limits: Limits, key_form: fn(&str) -> Cow<'_, str>) -> Reference {
        Reference {
            limits,
            position: Position { offset: start, watermark: Watermark::NEVER },
            max_ts: None,
            last_record: None,
            totals: Totals::default(),
            symbols: BTreeMap::new(),
            poisoned: BTreeMap::new(),
            due: BTreeSet::new(),
            outbox: VecDeque::new(),
            tail: None,
            key_form,
        }
    }

    /// Applies a batch: all of it, or nothing. `single`: it is one record and cannot be cut, so its outputs are not
    /// bounded.
    pub fn apply(&mut self, batch: &Batch, single: bool) -> Applied {
        if (Position { offset: batch.from, watermark: batch.watermark_before }) != self.position {
            return Applied::Moved;
        }
        if self.is_due() {
            return Applied::Due;
        }
        let mut after = self.clone();
        let outputs = after.take_effect(batch);
        if outputs.len() > self.limits.max_outputs && !single {
            return Applied::Split;
        }
        *self = after;
        Applied::Done(outputs.into_iter().map(|pending| self.append(pending.offset, pending.output)).collect())
    }

    /// Raises the watermark without ticks; it never goes back.
    pub fn advance(&mut self, to: Watermark) {
        self.position.watermark = self.position.watermark.max(to);
    }

    /// Seals up to a `page` of windows that end at or below the watermark, in order of (end, member).
    pub fn close(&mut self, page: usize) -> Closed {
        let watermark = self.position.watermark;
        let sealed: Vec<Due> =
            self.due.iter().take_while(|due| watermark.passes(due.end)).take(page).cloned().collect();
        let mut entries = Vec::new();
        for due in sealed {
            self.due.remove(&due);
            if let Some(candle) = self.seal(&due) {
                entries.push(self.append(self.position.offset, Output::Candle(candle)));
            }
        }
        Closed { entries, more: self.is_due() }
    }

    /// Drops the entries below `until` from the head of the outbox.
    pub fn trim(&mut self, until: OutboxId) {
        while self.outbox.front().is_some_and(|entry| entry.id < until) {
            self.outbox.pop_front();
        }
    }

    /// Drops what was delivered already from the head of the outbox, as a claim does. What is delivered behind
    /// an entry that is not stays.
    pub fn drop_delivered(&mut self, delivered: Position) {
        while self.outbox.front().is_some_and(|entry| entry.is_delivered(delivered)) {
            self.outbox.pop_front();
        }
    }

    /// Whether a window at or below the watermark is open.
    fn is_due(&self) -> bool {
        self.due.first().is_some_and(|due| self.position.watermark.passes(due.end))
    }

    /// Everything a batch changes but the outbox; returns the outputs in the order in which they are filed.
    fn take_effect(&mut self, batch: &Batch) -> Vec<Pending> {
        let mut outputs: Vec<Pending> = Vec::new();
        for extra in &batch.extras {
            outputs.push(Pending::from_extra(extra));
        }
        for of_symbol in &batch.symbols {
            if let Some(reason) = self.poisoned.get(&of_symbol.symbol) {
                let before = outputs.len();
                dead_letters(of_symbol, reason, &mut outputs);
                self.totals.dead_letters += (outputs.len() - before) as u64;
            } else {
                self.apply_symbol(of_symbol, &mut outputs);
            }
        }
        outputs.sort_by_key(|pending| (pending.offset, pending.index, pending.class));

        self.position = Position { offset: batch.to, watermark: batch.watermark_after };
        self.max_ts = self.max_ts.max(batch.max_ts);
        self.last_record = batch.last_record.or(self.last_record);
        self.totals.ticks += batch.counts.ticks;
        self.totals.late += batch.counts.late;
        self.totals.dead_letters += batch.counts.dead_letters;
        outputs
    }

    /// The ticks of one symbol: its last price and its rules first, then its candles.
    fn apply_symbol(&mut self, batch: &SymbolBatch, outputs: &mut Vec<Pending>) {
        let symbol = self.symbols.entry(batch.symbol.clone()).or_default();
        for tick in &batch.ticks {
            if symbol.last.is_some_and(|last| tick.ts < last.ts) {
                self.totals.out_of_order += 1;
                continue;
            }
            let previous = symbol.last.replace(Last { price: tick.price, ts: tick.ts }).map(|last| last.price);
            let (fired, refused) = symbol.fire(&batch.symbol, tick, previous, self.limits.max_matches);
            self.totals.notifications += fired.len() as u64;
            self.totals.refused += refused;
            outputs.extend(fired.into_iter().map(|notification| Pending {
                offset: tick.offset,
                index: tick.index,
                class: Class::Notification,
                output: Output::Notification(notification),
            }));
        }
        for partial in &batch.windows {
            let candle = symbol.merge(partial);
            if let Some(offset) = partial.revises {
                candle.status = Status::Revised;
                candle.revision = offset.0 + 1;
                let output = Output::Candle(candle.to_send(&batch.symbol, partial.interval, partial.window));
                outputs.push(Pending { offset, index: u32::MAX, class: Class::Revision, output });
            } else {
                // A candle that was sent already is met when its symbol moved here from another partition. It keeps
                // its status, which says so, and is sent anew when the window closes here.
                let (interval, window) = (partial.interval, partial.window);
                let member = format!("{}:{interval}:{}", (self.key_form)(&batch.symbol), window.start);
                let symbol = batch.symbol.clone();
                self.due.insert(Due { end: window.end, member, symbol, interval, start: window.start });
            }
        }
    }

    /// Closes one candle. `None` if there is none any more: nothing is sent for it.
    fn seal(&mut self, due: &Due) -> Option<Candle> {
        let candle = self.symbols.get_mut(&due.symbol)?.candles.get_mut(&(due.interval, due.start))?;
        if candle.status == Status::Open {
            candle.status = Status::Final;
        } else {
            candle.status = Status::Revised;
            candle.revision = self.position.offset.0;
        }
        Some(candle.to_send(&due.symbol, due.interval, Window { start: due.start, end: due.end }))
    }

    /// Files an output under `offset`, behind the newest entry.
    fn append(&mut self, offset: Offset, output: Output) -> Entry {
        let n = self.tail.filter(|tail| tail.offset == offset).map_or(1, |tail| tail.n + 1);
        let entry = Entry { id: OutboxId { offset, n }, output };
        self.tail = Some(entry.id);
        self.outbox.push_back(entry.clone());
        entry
    }
}

impl Symbol {
    /// What an in-order tick fires, at most `max_matches` rules, in the order of filing: edge before level, then by
    /// threshold, then by member. Also returns how many rules that match were refused past that.
    fn fire(
        &mut self,
        symbol: &str,
        tick: &BatchTick,
        previous: Option<Price>,
        max_matches: usize,
    ) -> (Vec<Notification>, u64) {
        let mut fired = Vec::new();
        let mut refused = 0;
        for rule in self.rules.in_order() {
            if !rule.trigger.fires(rule.op, rule.threshold, previous, tick.price) {
                continue;
            }
            if fired.len() == max_matches {
                refused += 1;
                continue;
            }
            let options = self.rules.options.get(&rule.id).cloned().unwrap_or(Some(RuleOptions::default()));
            let Some(options) = options else { continue };
            if options.expires.is_some_and(|expires| tick.ts >= expires) {
                self.remove(&rule);
                continue;
            }
            if let Some(cooldown) = options.cooldown {
                if self.fired.get(&rule.id).is_some_and(|last| tick.ts - last < cooldown) {
                    continue;
                }
                self.fired.insert(rule.id.clone(), tick.ts);
            }
            if options.once {
                self.remove(&rule);
            }
            fired.push(Notification {
                symbol: symbol.to_owned(),
                rule: rule.id,
                trigger: rule.trigger,
                op: rule.op,
                threshold: rule.threshold,
                price: tick.price,
                previous,
                ts: tick.ts,
                index: tick.index,
                note: options.note,
            });
        }
        // Stable: level rules of one threshold were tried in the order of their members.
        fired.sort_by(|a, b| a.trigger.cmp(&b.trigger).then(a.threshold.to_f64().total_cmp(&b.threshold.to_f64())));
        (fired, refused)
    }

    /// Takes a rule out of its set, and with it what is kept under its id.
    fn remove(&mut self, rule: &Rule) {
        self.rules.set_of(rule).remove(&rule.member);
        self.rules.options.remove(&rule.id);
        self.fired.remove(&rule.id);
    }

    /// Adds a partial candle to the stored one, which is made if there is none.
    fn merge(&mut self, partial: &Partial) -> &mut StoredCandle {
        self.candles
            .entry((partial.interval, partial.window.start))
            .and_modify(|candle| candle.add(partial))
            .or_insert_with(|| StoredCandle::new(partial))
    }
}

/// A rule of which a price may hold something true.
#[derive(Debug, Clone)]
struct Rule {
    trigger: Trigger,
    op: Op,
    threshold: Price,
    id: String,
    member: String,
}

impl Rules {
    /// Every rule that parses, in the order in which they are tried at one tick: edge, level below, equal, above,
    /// each by threshold, then by member.
    fn in_order(&self) -> Vec<Rule> {
        use Op::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        let sets: [(Trigger, &RuleSet, &[Op]); 4] = [
            (Trigger::Edge, &self.edge, &Op::ALL),
            (Trigger::Level, &self.below, &[Less, LessOrEqual]),
            (Trigger::Level, &self.equal, &[Equal]),
            (Trigger::Level, &self.above, &[Greater, GreaterOrEqual]),
        ];
        let mut in_order = Vec::new();
        for (trigger, set, ops) in sets {
            let mut rules: Vec<Rule> =
                set.iter().filter_map(|(member, score)| Rule::parse(trigger, ops, member, *score)).collect();
            rules.sort_by(|a, b| a.threshold.to_f64().total_cmp(&b.threshold.to_f64()));
            in_order.extend(rules);
        }
        in_order
    }

    /// The set a rule is in.
    fn set_of(&mut self, rule: &Rule) -> &mut RuleSet {
        match (rule.trigger, rule.op) {
            (Trigger::Edge, _) => &mut self.edge,
            (Trigger::Level, Op::Greater | Op::GreaterOrEqual) => &mut self.above,
            (Trigger::Level, Op::Less | Op::LessOrEqual) => &mut self.below,
            (Trigger::Level, Op::Equal) => &mut self.equal,
        }
    }
}

impl Rule {
    /// What a member of a set says. `None` if it has no operator, one that is not of this set, no id, or a
    /// threshold that no price can have: such a member is skipped and hurts no other.
    fn parse(trigger: Trigger, ops: &[Op], member: &str, score: f64) -> Option<Rule> {
        let (op, id) = member.split_once(' ')?;
        let op = op.parse().ok().filter(|op| ops.contains(op))?;
        let threshold = Price::from_f64(score)?;
        (!id.is_empty()).then(|| Rule { trigger, op, threshold, id: id.to_owned(), member: member.to_owned() })
    }
}

impl StoredCandle {
    /// A candle that holds one partial only.
    fn new(partial: &Partial) -> StoredCandle {
        StoredCandle {
            open: partial.open,
            high: partial.high,
            low: partial.low,
            close: partial.close,
            volume: partial.volume,
            count: partial.count,
            open_ts: partial.open_ts,
            close_ts: partial.close_ts,
            status: Status::Open,
            revision: 0,
        }
    }

    /// Adds ticks that come later in the log: among equal times the first stays open, the last becomes close.
    fn add(&mut self, partial: &Partial) {
        if partial.open_ts < self.open_ts {
            (self.open, self.open_ts) = (partial.open, partial.open_ts);
        }
        if partial.close_ts >= self.close_ts {
            (self.close, self.close_ts) = (partial.close, partial.close_ts);
        }
        if partial.high > self.high {
            self.high = partial.high;
        }
        if partial.low < self.low {
            self.low = partial.low;
        }
        self.volume = self.volume.plus(partial.volume);
        self.count += partial.count;
    }

    /// The record sent for it.
    fn to_send(self, symbol: &str, interval: Interval, window: Window) -> Candle {
        Candle {
            symbol: symbol.to_owned(),
            interval,
            start: window.start,
            end: window.end,
            open: self.open,
            high: self.high,
            low: self.low,
            close: self.close,
            volume: self.volume,
            count: self.count,
            revision: self.revision,
        }
    }
}

/// An output not yet filed. Sorted by offset, tick within the record, class; what is equal keeps its order.
#[derive(Debug)]
struct Pending {
    offset: Offset,
    index: u32,
    class: Class,
    output: Output,
}

/// Kinds of outputs of one tick, in the order in which they are filed. A revision belongs to its record: its index
/// is behind every tick's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Notification,
    Revision,
    SetAside,
}

impl Pending {
    fn from_extra(extra: &Extra) -> Pending {
        let output = match &extra.kind {
            ExtraKind::Late { symbol, price, volume, ts, intervals } => Output::Late(LateTick {
                symbol: symbol.to_string(),
                price: *price,
                volume: *volume,
                ts: *ts,
                index: extra.index,
                intervals: intervals.clone(),
            }),
            ExtraKind::DeadLetter { reason } => Output::DeadLetter { reason: reason.clone() },
        };
        Pending { offset: extra.offset, index: extra.index, class: Class::SetAside, output }
    }
}

/// One dead letter for each record that holds ticks of a poisoned symbol and is not a dead letter already.
fn dead_letters(batch: &SymbolBatch, reason: &str, outputs: &mut Vec<Pending>) {
    for tick in &batch.ticks {
        let is_dead = |pending: &Pending| {
            pending.offset == tick.offset && matches!(pending.output, Output::DeadLetter { .. })
        };
        if !outputs.iter().any(is_dead) {
            let output = Output::DeadLetter { reason: reason.to_owned() };
            outputs.push(Pending { offset: tick.offset, index: tick.index, class: Class::SetAside, output });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Counts;

    const BEGIN: i64 = 1_700_000_000_000;

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap().value
    }

    fn volume(text: &str) -> Volume {
        Volume::parse(text).unwrap()
    }

    fn second() -> Interval {
        "1s".parse().unwrap()
    }

    /// The state of a partition at its start, and one symbol, `X`.
    struct World {
        state: Reference,
    }

    impl World {
        fn new() -> World {
            let limits = Limits { max_matches: 100, max_outputs: 1000 };
            World { state: Reference::new(Offset(0), limits, |symbol| Cow::Borrowed(symbol)) }
        }

        fn with_edge(rule: &str, threshold: f64) -> World {
            let mut world = World::new();
            world.symbol().rules.edge.insert(rule.to_owned(), threshold);
            world
        }

        fn symbol(&mut self) -> &mut Symbol {
            self.state.symbols.entry("X".into()).or_default()
        }

        fn options(&mut self, id: &str, options: RuleOptions) {
            self.symbol().rules.options.insert(id.to_owned(), Some(options));
        }

        /// A batch of records `[from, to)` that leaves the watermark where it is.
        fn batch(&self, records: i64) -> Batch {
            let Position { offset, watermark } = self.state.position;
            Batch {
                from: offset,
                to: Offset(offset.0 + records),
                watermark_before: watermark,
                watermark_after: watermark,
                max_ts: None,
                last_record: None,
                symbols: Vec::new(),
                extras: Vec::new(),
                counts: Counts::default(),
            }
        }

        fn apply(&mut self, batch: &Batch) -> Vec<Entry> {
            match self.state.apply(batch, batch.to.0 - batch.from.0 <= 1) {
                Applied::Done(entries) => entries,
                refusal => panic!("{refusal:?}"),
            }
        }

        /// One batch with a record a tick: (ts after `BEGIN`, price).
        fn ticks(&mut self, ticks: &[(i64, &str)]) -> Vec<Entry> {
            let mut batch = self.batch(ticks.len() as i64);
            let ticks = (batch.from.0..).zip(ticks).map(|(offset, (ts, text))| BatchTick {
                offset: Offset(offset),
                index: 0,
                ts: BEGIN + ts,
                price: price(text),
            });
            batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks: ticks.collect(), windows: Vec::new() });
            self.apply(&batch)
        }

        /// Prices a second apart, each in a batch of its own; the prices that fired.
        fn prices(&mut self, prices: &[&str]) -> Vec<String> {
            let mut fired = Vec::new();
            for text in prices {
                let ts = self.symbol().last.map_or(0, |last| last.ts - BEGIN + 1000);
                fired.extend(notified(&self.ticks(&[(ts, text)])));
            }
            fired
        }

        /// One partial candle of the first second, of as many ticks as there are prices, a millisecond apart.
        fn partial(&mut self, first_ts: i64, prices: [&str; 2], revises: Option<i64>) -> Vec<Entry> {
            let mut batch = self.batch(1);
            let [open, close] = prices.map(price);
            let (low, high) = if open < close { (open, close) } else { (close, open) };
            batch.symbols.push(SymbolBatch {
                symbol: "X".into(),
                ticks: Vec::new(),
                windows: vec![Partial {
                    interval: second(),
                    window: Window { start: BEGIN, end: BEGIN + 1000 },
                    open,
                    high,
                    low,
                    close,
                    volume: volume("0.5"),
                    count: 2,
                    open_ts: BEGIN + first_ts,
                    close_ts: BEGIN + first_ts + 1,
                    revises: revises.map(Offset),
                }],
            });
            self.apply(&batch)
        }

        fn candle(&mut self) -> StoredCandle {
            self.symbol().candles[&(second(), BEGIN)]
        }

        fn pass_first_second(&mut self) {
            self.state.advance(Watermark::at(BEGIN + 1000));
        }
    }

    fn notified(entries: &[Entry]) -> Vec<String> {
        entries
            .iter()
            .filter_map(|entry| match &entry.output {
                Output::Notification(notification) => Some(notification.price.to_string()),
                _ => None,
            })
            .collect()
    }

    fn rules(entries: &[Entry]) -> Vec<String> {
        entries
            .iter()
            .filter_map(|entry| match &entry.output {
                Output::Notification(n) => Some(format!("{} {} {}", n.trigger, n.op, n.rule)),
                _ => None,
            })
            .collect()
    }

    fn candle_of(entry: &Entry) -> &Candle {
        match &entry.output {
            Output::Candle(candle) => candle,
            other => panic!("{other:?}"),
        }
    }

    fn once() -> RuleOptions {
        RuleOptions { once: true, ..RuleOptions::default() }
    }

    #[test]
    fn a_first_tick_never_fires_an_edge_rule() {
        assert!(World::with_edge(">= a", 100.0).prices(&["140"]).is_empty());
    }

    #[test]
    fn a_level_rule_fires_at_the_first_tick_with_no_previous_price() {
        let mut world = World::new();
        world.symbol().rules.below.insert("< a".to_owned(), 10.0);
        let entries = world.ticks(&[(0, "5"), (1, "4"), (2, "10")]);
        let Output::Notification(first) = &entries[0].output else { panic!("{entries:?}") };
        assert_eq!(first.previous, None);
        assert_eq!(notified(&entries), ["5", "4"]);
    }

    #[test]
    fn staying_below_is_silent_across_a_takeover() {
        // Each price is a batch of its own: nothing but the stored last price connects them.
        assert!(World::with_edge("< a", 10.0).prices(&["5", "4"]).is_empty());
    }

    #[test]
    fn a_crossing_fires_once_until_the_price_crosses_again() {
        assert_eq!(World::with_edge(">= a", 100.0).prices(&["99", "100.5", "99.5", "99.6"]), ["100.5"]);
        assert_eq!(World::with_edge(">= a", 100.0).prices(&["99", "101", "99", "101"]), ["101", "101"]);
    }

    #[test]
    fn a_jump_across_the_threshold_reports_the_price_it_landed_on() {
        assert_eq!(World::with_edge(">= a", 100.0).prices(&["95", "140"]), ["140"]);
    }

    #[test]
    fn a_price_is_compared_as_rounded_to_15_digits() {
        let prices = ["9", "10.000000000000001", "9"];
        assert_eq!(World::with_edge(">= a", 10.0).prices(&prices), ["10"]);
        assert!(World::with_edge("> a", 10.0).prices(&prices).is_empty());
    }

    #[test]
    fn zero_is_a_price_like_any_other_where_it_is_accepted() {
        assert_eq!(World::with_edge("< a", 50.0).prices(&["100", "0", "101"]), ["0"]);
        assert_eq!(World::with_edge(">= a", 50.0).prices(&["100", "0", "101"]), ["101"]);
    }

    #[test]
    fn once_removes_the_rule_and_its_options_within_the_batch() {
        let mut world = World::with_edge(">= a", 100.0);
        world.options("a", once());
        assert_eq!(notified(&world.ticks(&[(0, "99"), (1, "101"), (2, "99"), (3, "101")])), ["101"]);
        assert!(world.symbol().rules.edge.is_empty() && world.symbol().rules.options.is_empty());
    }

    #[test]
    fn a_cooldown_is_counted_in_event_time_from_the_last_firing() {
        let mut world = World::with_edge(">= a", 100.0);
        world.options("a", RuleOptions { cooldown: Some(10), ..RuleOptions::default() });
        let ticks = [(0, "99"), (1, "101"), (2, "99"), (10, "102"), (10, "99"), (11, "103")];
        assert_eq!(notified(&world.ticks(&ticks)), ["101", "103"]);
        assert_eq!(world.symbol().fired["a"], BEGIN + 11);
    }

    #[test]
    fn an_expired_rule_is_removed_when_it_would_fire() {
        let mut world = World::with_edge(">= a", 100.0);
        world.options("a", RuleOptions { expires: Some(BEGIN + 10), ..RuleOptions::default() });
        assert_eq!(notified(&world.ticks(&[(0, "99"), (9, "101"), (20, "99")])), ["101"]);
        assert_eq!(world.symbol().rules.edge.len(), 1);
        assert!(notified(&world.ticks(&[(21, "101")])).is_empty());
        assert!(world.symbol().rules.edge.is_empty() && world.symbol().rules.options.is_empty());
    }

    #[test]
    fn a_rule_that_does_not_parse_is_skipped_and_hurts_no_other() {
        let mut world = World::with_edge(">= good", 100.0);
        for (member, threshold) in [("=> a", 100.0), (">=b", 100.0), (">= ", 100.0), ("< c", f64::INFINITY)] {
            world.symbol().rules.edge.insert(member.to_owned(), threshold);
        }
        world.symbol().rules.above.insert("< wrong set".to_owned(), 100.0);
        world.symbol().rules.edge.insert(">= bad options".to_owned(), 100.0);
        world.symbol().rules.options.insert("bad options".to_owned(), None);
        assert_eq!(rules(&world.ticks(&[(0, "99"), (1, "101")])), ["edge >= good"]);
    }

    #[test]
    fn an_out_of_order_tick_moves_nothing_and_is_counted() {
        let mut world = World::with_edge(">= a", 100.0);
        assert!(notified(&world.ticks(&[(10, "99"), (9, "101"), (10, "98")])).is_empty());
        assert_eq!(world.symbol().last, Some(Last { price: price("98"), ts: BEGIN + 10 }));
        assert_eq!(world.state.totals.out_of_order, 1);
    }

    #[test]
    fn a_tick_fires_at_most_max_matches_rules() {
        let mut world = World::new();
        world.state.limits.max_matches = 2;
        for id in ["c", "b", "a"] {
            world.symbol().rules.edge.insert(format!("> {id}"), 100.0);
            world.options(id, once());
        }
        assert_eq!(rules(&world.ticks(&[(0, "99"), (1, "101")])), ["edge > a", "edge > b"]);
        assert_eq!(world.state.totals.refused, 1);
        assert_eq!(world.symbol().rules.edge.len(), 1);
    }

    #[test]
    fn outputs_of_a_tick_are_filed_edge_before_level_then_by_threshold_then_by_member() {
        let mut world = World::new();
        let rules_of = &mut world.symbol().rules;
        rules_of.edge.insert("> e".to_owned(), 100.0);
        rules_of.above.insert(">= high".to_owned(), 101.0);
        rules_of.above.insert("> low".to_owned(), 1.0);
        rules_of.equal.insert("= high".to_owned(), 101.0);
        rules_of.below.insert("<= high".to_owned(), 101.0);
        let entries = world.ticks(&[(0, "99"), (1, "101")]);
        let of_second: Vec<Entry> = entries.into_iter().filter(|entry| entry.id.offset == Offset(1)).collect();
        assert_eq!(
            rules(&of_second),
            ["edge > e", "level > low", "level <= high", "level = high", "level >= high"]
        );
        assert_eq!(of_second.iter().map(|entry| entry.id.n).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn ids_count_on_from_the_last_entry_of_the_same_offset_even_if_it_was_trimmed() {
        let mut world = World::new();
        world.symbol().rules.above.insert("> a".to_owned(), 0.0);
        world.partial(0, ["10", "11"], None);
        world.pass_first_second();
        let closed = world.state.close(10).entries;
        assert_eq!(closed[0].id, OutboxId { offset: Offset(1), n: 1 });
        world.state.trim(OutboxId { offset: Offset(1), n: 2 });
        assert!(world.state.outbox.is_empty());
        assert_eq!(world.ticks(&[(0, "9")])[0].id, OutboxId { offset: Offset(1), n: 2 });
        assert_eq!(world.ticks(&[(0, "9")])[0].id, OutboxId { offset: Offset(2), n: 1 });
    }

    #[test]
    fn among_equal_times_the_first_tick_stays_open_and_the_last_becomes_close() {
        let mut world = World::new();
        world.partial(5, ["10", "11"], None);
        world.partial(5, ["20", "21"], None);
        let candle = world.candle();
        assert_eq!((candle.open, candle.close), (price("10"), price("21")));
        world.partial(4, ["1", "2"], None);
        let candle = world.candle();
        assert_eq!((candle.open, candle.close), (price("1"), price("21")));
        assert_eq!((candle.low, candle.high), (price("1"), price("21")));
        assert_eq!((candle.volume, candle.count), (volume("1.5"), 6));
        assert_eq!((candle.status, candle.revision), (Status::Open, 0));
        assert_eq!(world.state.due.len(), 1);
    }

    #[test]
    fn nothing_is_applied_while_a_due_window_is_open() {
        let mut world = World::new();
        world.partial(0, ["10", "11"], None);
        world.pass_first_second();
        let batch = world.batch(1);
        assert_eq!(world.state.apply(&batch, true), Applied::Due);
        let closed = world.state.close(1);
        assert!(!closed.more);
        let sent = candle_of(&closed.entries[0]);
        assert_eq!((sent.revision, sent.start, sent.end), (0, BEGIN, BEGIN + 1000));
        assert_eq!(world.candle().status, Status::Final);
        assert!(matches!(world.state.apply(&batch, true), Applied::Done(_)));
    }

    #[test]
    fn closing_goes_page_by_page_in_the_order_of_end_and_name() {
        let mut world = World::new();
        let minute: Interval = "1m".parse().unwrap();
        let mut batch = world.batch(1);
        world.partial(0, ["10", "11"], None);
        let mut partial = Partial { interval: second(), ..partial_of(&world.candle()) };
        batch.from = Offset(1);
        batch.to = Offset(2);
        for symbol in ["B", "A"] {
            let start = minute.window_of(BEGIN);
            let long = Partial { interval: minute, window: start, ..partial };
            partial.window = Window { start: BEGIN, end: BEGIN + 1000 };
            batch.symbols.push(SymbolBatch { symbol: symbol.into(), ticks: vec![], windows: vec![partial, long] });
        }
        world.apply(&batch);
        world.state.advance(Watermark::at(BEGIN + 60_000));
        let mut closed = Vec::new();
        while {
            let page = world.state.close(2);
            closed.extend(page.entries);
            page.more
        } {}
        let names: Vec<String> =
            closed.iter().map(candle_of).map(|c| format!("{} {}", c.symbol, c.interval)).collect();
        assert_eq!(names, ["A 1s", "B 1s", "X 1s", "A 1m", "B 1m"]);
    }

    fn partial_of(candle: &StoredCandle) -> Partial {
        Partial {
            interval: second(),
            window: Window { start: BEGIN, end: BEGIN + 1000 },
            open: candle.open,
            high: candle.high,
            low: candle.low,
            close: candle.close,
            volume: candle.volume,
            count: candle.count,
            open_ts: candle.open_ts,
            close_ts: candle.close_ts,
            revises: None,
        }
    }

    #[test]
    fn a_late_tick_revises_its_candle_under_its_own_offset() {
        let mut world = World::new();
        world.partial(5, ["10", "11"], None);
        world.pass_first_second();
        world.state.close(10);
        let entries = world.partial(0, ["9", "12"], Some(1));
        let sent = candle_of(&entries[0]);
        assert_eq!((sent.revision, sent.open, sent.close, sent.count), (2, price("9"), price("11"), 4));
        assert_eq!(world.candle().status, Status::Revised);
        assert!(world.state.due.is_empty());
    }

    #[test]
    fn a_candle_that_was_sent_before_its_symbol_moved_here_is_closed_as_a_revision() {
        let mut world = World::new();
        world.partial(5, ["10", "11"], None);
        world.pass_first_second();
        world.state.close(10);
        let mut other = World::new();
        other.state.position.offset = Offset(70);
        other.state.symbols = world.state.symbols.clone();
        other.partial(6, ["12", "13"], None);
        assert_eq!(other.state.due.len(), 1);
        other.pass_first_second();
        let closed = other.state.close(10);
        assert_eq!((candle_of(&closed.entries[0]).revision, candle_of(&closed.entries[0]).count), (71, 4));
        assert_eq!(other.candle().status, Status::Revised);
    }

    #[test]
    fn a_window_whose_candle_is_gone_closes_without_an_output() {
        let mut world = World::new();
        world.partial(5, ["10", "11"], None);
        world.symbol().candles.clear();
        world.pass_first_second();
        assert_eq!(world.state.close(10), Closed { entries: vec![], more: false });
    }

    #[test]
    fn too_many_outputs_split_a_batch_unless_it_is_one_record() {
        let mut world = World::new();
        world.state.limits.max_outputs = 1;
        for id in ["a", "b"] {
            world.symbol().rules.above.insert(format!("> {id}"), 0.0);
        }
        let mut batch = world.batch(2);
        let ticks = vec![BatchTick { offset: Offset(0), index: 0, ts: BEGIN, price: price("1") }];
        batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks, windows: vec![] });
        let before = world.state.clone();
        assert_eq!(world.state.apply(&batch, false), Applied::Split);
        assert_eq!(world.state.symbols, before.symbols);
        assert_eq!(world.state.position, before.position);
        assert!(matches!(world.state.apply(&batch, true), Applied::Done(entries) if entries.len() == 2));
    }

    #[test]
    fn a_batch_that_starts_elsewhere_is_refused() {
        let mut world = World::new();
        let batch = world.batch(1);
        let elsewhere = Batch { from: Offset(7), ..batch.clone() };
        assert_eq!(world.state.apply(&elsewhere, true), Applied::Moved);
        let other_time = Batch { watermark_before: Watermark::at(7), ..batch };
        assert_eq!(world.state.apply(&other_time, true), Applied::Moved);
    }

    #[test]
    fn a_record_of_a_poisoned_symbol_becomes_one_dead_letter_and_changes_nothing_of_the_symbol() {
        let mut world = World::with_edge(">= a", 100.0);
        world.state.poisoned.insert("X".into(), "tw:last:X: WRONGTYPE".to_owned());
        let mut batch = world.batch(2);
        let tick = |offset, index| BatchTick { offset: Offset(offset), index, ts: BEGIN, price: price("1") };
        let ticks = vec![tick(0, 0), tick(0, 1), tick(1, 0)];
        batch.symbols.push(SymbolBatch { symbol: "X".into(), ticks, windows: vec![] });
        let entries = world.apply(&batch);
        assert_eq!(entries.iter().map(|entry| entry.id.offset.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(world.state.totals.dead_letters, 2);
        assert_eq!(world.symbol().last, None);
    }

    #[test]
    fn delivered_entries_are_dropped_from_the_head_only() {
        let mut world = World::new();
        world.symbol().rules.above.insert("> a".to_owned(), 0.0);
        world.ticks(&[(0, "1")]);
        world.partial(0, ["10", "11"], None);
        world.pass_first_second();
        world.state.close(10); // filed under offset 2
        world.ticks(&[(0, "1")]); // offset 2
        let delivered = Position { offset: Offset(3), watermark: Watermark::at(BEGIN) };
        world.state.drop_delivered(delivered);
        let left: Vec<String> = world.state.outbox.iter().map(|entry| entry.id.to_string()).collect();
        assert_eq!(left, ["2-1", "2-2"]);
    }
}
