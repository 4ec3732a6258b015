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
    /// Whether changes of open candles are noted, to be sent by [`Reference::update`].
    pub updates: bool,
    /// Open windows that changed since they were last sent: the next offset after the first of these changes, and the
    /// member of `tw:due`.
    pub changed: BTreeSet<(Offset, String)>,
    /// A wave of updates is under way: it takes changes up to this offset.
    pub wave: Option<Offset>,
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
    /// Most outputs of a batch of more than one record, but for the candles it seals.
    pub max_outputs: usize,
    /// Most windows that a batch seals; if there are more, none.
    pub page: usize,
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

/// What a page of updates did.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// The candles, as they stand.
    pub entries: Vec<Entry>,
    /// Whether the wave goes on.
    pub more: bool,
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
            position: Position::at(start, Watermark::NEVER),
            max_ts: None,
            last_record: None,
            totals: Totals::default(),
            symbols: BTreeMap::new(),
            poisoned: BTreeMap::new(),
            due: BTreeSet::new(),
            updates: false,
            changed: BTreeSet::new(),
            wave: None,
            outbox: VecDeque::new(),
            tail: None,
            key_form,
        }
    }

    /// Applies a batch: all of it, or nothing. `single`: it is one record and cannot be cut, so its outputs are not
    /// bounded. What the watermark has passed then is sealed with it, unless it is more than a page.
    pub fn apply(&mut self, batch: &Batch, single: bool) -> Applied {
        if (Position::at(batch.from, batch.watermark_before)) != self.position {
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
        let mut entries: Vec<Entry> =
            outputs.into_iter().map(|pending| self.append(pending.offset, pending.output)).collect();
        let passed = |due: &&Due| self.position.watermark.passes(due.end);
        if self.due.iter().take_while(passed).nth(self.limits.page).is_none() {
            entries.extend(self.close(self.limits.page).entries);
        }
        Applied::Done(entries)
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
            self.changed.retain(|(_, member)| *member != due.member);
            if let Some(candle) = self.seal(&due) {
                entries.push(self.append(self.position.offset, Output::Candle(candle)));
            }
        }
        Closed { entries, more: self.is_due() }
    }

    /// Sends up to a `page` of the open windows that changed since they were last sent, in order of (offset of the first
    /// change, member). What changes while a wave of pages is under way waits for the next wave: no window is in one
    /// twice. When a wave may begin is a matter of the clock.
    pub fn update(&mut self, page: usize) -> Updated {
        let upto = *self.wave.get_or_insert(self.position.offset);
        let taken: Vec<_> = self.changed.iter().take_while(|(at, _)| *at <= upto).take(page).cloned().collect();
        let mut entries = Vec::new();
        for one in taken {
            self.changed.remove(&one);
            let Some(due) = self.due.iter().find(|due| due.member == one.1) else { continue };
            let candle = self.symbols.get(&due.symbol).and_then(|it| it.candles.get(&(due.interval, due.start)));
            if let Some(candle) = candle.filter(|candle| candle.status == Status::Open) {
                let window = Window { start: due.start, end: due.end };
                let update = Output::Update(candle.to_send(&due.symbol, due.interval, window));
                entries.push(self.append(self.position.offset, update));
            }
        }
        let more = self.changed.first().is_some_and(|(at, _)| *at <= upto);
        self.wave = self.wave.filter(|_| more);
        Updated { entries, more }
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
                self.apply_symbol(of_symbol, batch.to, &mut outputs);
            }
        }
        outputs.sort_by_key(|pending| (pending.offset, pending.index, pending.class));

        self.position = Position::at(batch.to, batch.watermark_after);
        self.max_ts = self.max_ts.max(batch.max_ts);
        self.last_record = batch.last_record.or(self.last_record);
        self.totals.ticks += batch.counts.ticks;
        self.totals.late += batch.counts.late;
        self.totals.dead_letters += batch.counts.dead_letters;
        outputs
    }

    /// The ticks of one symbol: its last price and its rules first, then its candles.
    fn apply_symbol(&mut self, batch: &SymbolBatch, to: Offset, outputs: &mut Vec<Pending>) {
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
                let noted = self.changed.iter().any(|(_, noted)| *noted == member);
                if self.updates && candle.status == Status::Open && !noted {
                    self.changed.insert((to, member.clone()));
                }
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
mod tests;
