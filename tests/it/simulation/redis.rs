//! Redis as a simulation needs it: the scripts on the reference of their semantics, behind their guard, and every
//! state that it may come back to.

use std::collections::{BTreeMap, VecDeque};

use tickwatch::domain::reference::{self, Limits, Reference, RuleOptions};
use tickwatch::domain::{Batch, Entry, Offset, OutboxId, Output, Position, Watermark};
use tickwatch::store::keys::encode_symbol;
use tickwatch::store::scripts::{
    Advanced, Applied, Beat, Claim, Claimed, Closed, Effects, Guard, Refusal, State, Token, Updated,
};
use tickwatch::worker::protocol::{Command, Event};

use super::broken::Broken;
use super::kafka::named;
use super::log::SYMBOLS;
use super::oracle::{Happening, Key, RULES, WindowKey};
use super::plan::Plan;

const OUTBOX_PAGE: usize = 3;

/// As far back as Redis comes back after a fault, in writes.
pub(super) const WRITES_LOST: usize = 12;

/// The group whose namespace it is.
pub(super) const GROUP: &str = "group";

/// The state of one source partition and of its symbols.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) claimed: bool,
    token: Option<Token>,
    epoch: u64,
    max_ts_at: u64,
    pub(super) generation: u64,
    /// The incarnation of the topic that it was made from.
    pub(super) topic: usize,
    pub(super) state: Reference,
    /// What this state went through that is not on the log.
    pub(super) happenings: Vec<Happening>,
    /// Delivered position when this era began: what was delivered before is muted.
    pub(super) from: Position,
    /// Delivered position that the last claim named.
    delivered: Option<Position>,
    /// Revisions of each window so far, for [`Broken::RevisionIsACount`].
    revisions: BTreeMap<WindowKey, Vec<i64>>,
    /// When the last wave of updates ended.
    updated_at: Option<u64>,
}

/// Everything in the namespace.
#[derive(Debug, Clone)]
struct Stored {
    group: Option<String>,
    sources: Vec<Source>,
}

/// A call to a script, as it was carried out.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) now: u64,
    pub(super) part: usize,
    pub(super) command: Command,
    /// What is committed, where that is not lost.
    pub(super) truth: Position,
    /// Records below this offset could not be read by the caller.
    pub(super) reading_from: i64,
    /// Redis is out of memory, and half of it is done: [`Broken::RefusedWriteIsHalfDone`].
    pub(super) half: bool,
}

/// A state that will not come back, and how far it had come.
#[derive(Debug, Clone)]
pub(super) struct Era {
    pub(super) happenings: Vec<Happening>,
    pub(super) topic: usize,
    pub(super) position: Position,
    /// What was delivered when it began, and when it ended.
    pub(super) from: Position,
    pub(super) until: Position,
}

/// Redis, with the states it may come back to: a state some writes ago, and the writes since.
#[derive(Debug)]
pub(super) struct Store {
    now: Stored,
    /// The state that [`Store::calls`] were carried out on, and the one after [`WRITES_LOST`] of them.
    base: Stored,
    middle: Option<Stored>,
    calls: VecDeque<Call>,
    broken: Broken,
    limits: Limits,
    /// Windows closed by one call; and the least time between two waves of updates, ms.
    page: (usize, u64),
    updates: bool,
    /// What a state was when Redis lost it, by partition.
    lost: Vec<Option<Era>>,
    before_flush: Option<Stored>,
    /// The rules are gone, and nobody has put them back.
    pub(super) rules_gone: bool,
    /// The number that a revision is sent with, for [`Broken::RevisionIsACount`].
    pub(super) counted: BTreeMap<(usize, WindowKey, i64), i64>,
}

pub(super) const NOTHING_DELIVERED: Position = Position::at(Offset(0), Watermark::NEVER);

impl Source {
    fn new(part: usize, limits: Limits, poisoned: Option<usize>, updates: bool) -> Source {
        let mut state = Reference::new(Offset(0), limits, encode_symbol);
        state.updates = updates;
        for (number, symbol) in SYMBOLS[part].iter().enumerate() {
            let rules = &mut state.symbols.entry((*symbol).into()).or_default().rules;
            for rule in RULES.iter().filter(|rule| rule.symbol == number) {
                let set = match (rule.edge, rule.op) {
                    (true, _) => &mut rules.edge,
                    (false, "=") => &mut rules.equal,
                    (false, "<") => &mut rules.below,
                    (false, _) => &mut rules.above,
                };
                set.insert(format!("{} {}", rule.op, rule.id), rule.threshold as f64);
                if rule.once || rule.cooldown.is_some() {
                    let options =
                        RuleOptions { once: rule.once, cooldown: rule.cooldown, ..RuleOptions::default() };
                    rules.options.insert(rule.id.to_owned(), Some(options));
                }
            }
        }
        if let Some(symbol) = poisoned {
            state.poisoned.insert(SYMBOLS[part][symbol].into(), "poisoned key".into());
        }
        Source {
            claimed: false,
            token: None,
            epoch: 0,
            max_ts_at: 0,
            generation: 0,
            topic: 0,
            state,
            happenings: Vec::new(),
            from: NOTHING_DELIVERED,
            delivered: None,
            revisions: BTreeMap::new(),
            updated_at: None,
        }
    }

    fn next_due(&self) -> Option<i64> {
        self.state.due.first().map(|due| due.end)
    }

    fn tail(&self) -> OutboxId {
        self.state.tail.unwrap_or(OutboxId { offset: Offset(0), n: 0 })
    }

    /// Whether a window at or below the watermark is open.
    pub(super) fn is_due(&self) -> bool {
        self.next_due().is_some_and(|due| self.state.position.watermark.passes(due))
    }

    pub(super) fn refusal(&self, guard: &Guard, broken: Broken) -> Option<Refusal> {
        if self.token.as_ref() != Some(&guard.token) && broken != Broken::GuardIgnoresTheToken {
            return Some(Refusal::Fenced);
        }
        let (found, held) = (self.state.position, guard.position);
        let moved = (found.offset != held.offset && broken != Broken::GuardIgnoresTheOffset)
            || (found.watermark != held.watermark && broken != Broken::GuardIgnoresTheWatermark)
            || (self.tail() != guard.tail && broken != Broken::GuardIgnoresTheTail);
        moved.then_some(Refusal::Moved)
    }

    fn era(&self, until: Position) -> Era {
        Era {
            happenings: self.happenings.clone(),
            topic: self.topic,
            position: self.state.position,
            from: self.from,
            until,
        }
    }

    fn apply(&mut self, call: &Call, batch: &Batch, single: bool, broken: Broken) -> Applied {
        let before = (self.state.max_ts, self.state.totals.out_of_order, self.state.position, self.state.tail);
        let mut batch = batch.clone();
        match broken {
            Broken::GuardIgnoresTheOffset => batch.from = before.2.offset,
            Broken::GuardIgnoresTheWatermark => batch.watermark_before = before.2.watermark,
            _ => {}
        }
        let limits = self.state.limits;
        match self.state.apply(&batch, single) {
            reference::Applied::Done(outputs) => {
                debug_assert!(single || outputs.len() <= limits.max_outputs + limits.page);
                if self.state.max_ts > before.0 {
                    self.max_ts_at = call.now;
                }
                if call.half {
                    self.state.outbox.truncate(self.state.outbox.len() - outputs.len());
                    self.state.tail = before.3;
                }
                let (from, readable) = (batch.from.0, call.reading_from.min(batch.to.0));
                if from < readable {
                    self.from = self.delivered.unwrap_or(NOTHING_DELIVERED).max(call.truth);
                    self.happenings.push(Happening::Skipped(from, readable));
                }
                if broken == Broken::RevisionIsACount {
                    self.remember_revisions(call.part, &outputs);
                }
                Applied::Ok(Effects {
                    outputs,
                    tail: self.tail(),
                    next_due: self.next_due(),
                    out_of_order: self.state.totals.out_of_order - before.1,
                    refused_matches: 0,
                    bad_rules: Vec::new(),
                    poisoned: Vec::new(),
                    lost: Vec::new(),
                })
            }
            reference::Applied::Due => Applied::Due,
            reference::Applied::Split => Applied::Split,
            reference::Applied::Moved => {
                assert!(broken != Broken::Nothing, "the batch was built on another position than its guard");
                Applied::Refused(Refusal::Moved)
            }
        }
    }

    fn remember_revisions(&mut self, part: usize, outputs: &[Entry]) {
        for entry in outputs.iter().filter(|entry| matches!(entry.output, Output::Candle(_))) {
            if let (Key::Candle(symbol, interval, start, revision), _) = named(part, entry) {
                self.revisions.entry((symbol, interval, start)).or_default().push(revision);
            }
        }
    }

    fn close(&mut self, page: usize) -> Closed {
        let closed = self.state.close(page);
        Closed::Ok {
            more: closed.more,
            outputs: closed.entries,
            tail: self.tail(),
            next_due: self.next_due(),
            lost: Vec::new(),
        }
    }

    /// A page of updates, and whether anything was written.
    fn update(&mut self, now: u64, page: usize, interval: u64, broken: Broken) -> (Updated, bool) {
        if self.state.wave.is_none() {
            let left = self.updated_at.map_or(0, |at| (at + interval).saturating_sub(now));
            if left > 0 {
                return (Updated::Wait { ms: left, left: self.state.changed.len() as u64 }, false);
            }
        }
        let wrote = self.state.wave.is_some() || !self.state.changed.is_empty();
        let mut updated = self.state.update(page);
        if broken == Broken::ClosedCandlesAreSentAsOpen && wrote {
            updated.entries.extend(self.update_of_a_closed_candle());
        }
        if wrote && !updated.more {
            self.updated_at = Some(now);
        }
        let left = self.state.changed.len() as u64;
        (Updated::Ok { more: updated.more, outputs: updated.entries, tail: self.tail(), left }, wrote)
    }

    /// As if a window were sent without seeing whether it has closed since it changed.
    fn update_of_a_closed_candle(&mut self) -> Option<Entry> {
        let offset = self.state.position.offset;
        let closed = self.state.outbox.iter().rev().find_map(|entry| match &entry.output {
            Output::Candle(candle) => Some(candle.clone()),
            _ => None,
        })?;
        let n = self.state.tail.filter(|tail| tail.offset == offset).map_or(1, |tail| tail.n + 1);
        let entry = Entry { id: OutboxId { offset, n }, output: Output::Update(closed) };
        self.state.tail = Some(entry.id);
        self.state.outbox.push_back(entry.clone());
        Some(entry)
    }

    fn advance(&mut self, now: u64, to: Watermark, grace: Option<i64>) -> Advanced {
        let bound =
            grace.map(|grace| self.state.max_ts.map_or(i64::MIN, |ts| ts + (now - self.max_ts_at) as i64 - grace));
        let to = to.min(bound.map_or(to, Watermark::at));
        if to > self.state.position.watermark {
            let raised = to.ms().expect("above another watermark");
            self.happenings.push(Happening::Advanced(self.state.position.offset.0, raised));
            self.state.advance(to);
        }
        Advanced::Ok { watermark: self.state.position.watermark, next_due: self.next_due() }
    }

    /// Whether a claim starts the topic over: unless somebody has done so since it was decided.
    pub(super) fn resets(&self, claim: &Claim) -> bool {
        claim.reset == Some(self.generation)
    }

    fn forget_changes(&mut self) {
        self.state.changed.clear();
        (self.state.wave, self.updated_at) = (None, None);
    }

    fn claim(&mut self, now: u64, truth: Position, claim: &Claim, topic: usize) -> State {
        let resets = self.resets(claim);
        if let Some(start) = claim.start
            && (resets || !self.claimed)
        {
            let at = self.state.position.offset.0;
            self.state.position = Position::at(start, Watermark::NEVER);
            // A worker that knows of less than what is committed may begin a state that another mutes.
            self.from = claim.delivered.unwrap_or(NOTHING_DELIVERED);
            if resets {
                self.happenings.push(Happening::MadeAgain(at, topic, start.0));
                (self.generation, self.topic) = (self.generation + 1, topic);
                (self.state.max_ts, self.state.last_record, self.state.tail) = (None, None, None);
                self.state.due.clear();
                self.forget_changes();
                self.state.outbox.clear();
            } else {
                self.forget_changes();
                self.from = self.from.max(truth);
                self.happenings = vec![Happening::Began(start.0)];
                self.topic = topic;
                if topic > 0 {
                    self.happenings = vec![Happening::MadeAgain(0, topic, start.0)];
                }
            }
        }
        self.claimed = true;
        self.epoch += 1;
        self.token = Some(claim.token.clone());
        self.delivered = claim.delivered;
        if let Some(delivered) = claim.delivered
            && self.generation == 0
        {
            self.state.drop_delivered(delivered);
        }
        State {
            epoch: self.epoch,
            position: self.state.position,
            tail: self.tail(),
            max_ts: self.state.max_ts,
            max_ts_age: (now - self.max_ts_at) as i64,
            last_record: self.state.last_record,
            fingerprint: claim.fingerprint.clone(),
            generation: self.generation,
            next_due: self.next_due(),
            outbox: self.state.outbox.len() as u64,
            previous_owner: String::new(),
        }
    }
}

impl Stored {
    /// Carries a call out, all of it at once. `topic`: the incarnation that there is now.
    fn carry_out(
        &mut self,
        call: &Call,
        topic: usize,
        (page, interval): (usize, u64),
        broken: Broken,
    ) -> (Event, bool) {
        let source = &mut self.sources[call.part];
        match &call.command {
            Command::Claim(claim) => {
                let foreign = self.group.as_ref().is_some_and(|group| *group != claim.group);
                if foreign && broken != Broken::OtherGroupGoesUnseen {
                    let group = self.group.clone().unwrap_or_default();
                    return (Event::Claimed(claim.token.clone(), Claimed::OtherGroup(group)), false);
                }
                let mut claim = claim.clone();
                if let (Broken::StateLossGoesUnseen, None, Some(delivered)) = (broken, claim.start, claim.delivered)
                {
                    claim.start = Some(delivered.offset);
                }
                if !source.claimed && claim.start.is_none() {
                    return (Event::Claimed(claim.token.clone(), Claimed::Absent), false);
                }
                self.group.get_or_insert_with(|| claim.group.clone());
                let state = source.claim(call.now, call.truth, &claim, topic);
                if broken == Broken::ChangesAreForgottenAtClaim {
                    source.forget_changes();
                }
                (Event::Claimed(claim.token, Claimed::Ok(state)), true)
            }
            Command::ReadOutbox(after) => {
                let entries = source.state.outbox.iter().filter(|entry| Some(entry.id) > *after);
                (Event::Outbox(entries.take(OUTBOX_PAGE).cloned().collect()), false)
            }
            Command::Apply(guard, batch, single) => {
                if let Some(refusal) = source.refusal(guard, broken) {
                    return (Event::Applied(Applied::Refused(refusal)), false);
                }
                let applied = source.apply(call, batch, *single, broken);
                let wrote = matches!(applied, Applied::Ok(_));
                (Event::Applied(applied), wrote)
            }
            Command::Close(guard) => {
                if let Some(refusal) = source.refusal(guard, broken) {
                    return (Event::Closed(Closed::Refused(refusal)), false);
                }
                let closed = source.close(page);
                let wrote = matches!(&closed, Closed::Ok { outputs, .. } if !outputs.is_empty());
                (Event::Closed(closed), wrote)
            }
            Command::Update(guard) => {
                if let Some(refusal) = source.refusal(guard, broken) {
                    return (Event::Updated(Updated::Refused(refusal)), false);
                }
                let (updated, wrote) = source.update(call.now, page, interval, broken);
                (Event::Updated(updated), wrote)
            }
            Command::Advance(guard, to, grace) => {
                if let Some(refusal) = source.refusal(guard, broken) {
                    return (Event::Advanced(Advanced::Refused(refusal)), false);
                }
                let before = source.state.position;
                let advanced = source.advance(call.now, *to, *grace);
                (Event::Advanced(advanced), source.state.position != before)
            }
            Command::Heartbeat(guard, _) => match source.refusal(guard, broken) {
                Some(refusal) if broken != Broken::HeartbeatIsNotGuarded => {
                    (Event::Beat(Beat::Refused(refusal)), false)
                }
                _ => (Event::Beat(Beat::Ok { outbox: 0, open_windows: 0 }), false),
            },
            Command::Trim(token, through) => {
                let owned = source.token.as_ref() == Some(token);
                if owned {
                    let beyond = u64::from(broken == Broken::TrimGoesOneTooFar);
                    source.state.trim(OutboxId { n: through.n + 1 + beyond, ..*through });
                }
                (Event::Trimmed, owned)
            }
            other => unreachable!("{other:?} is not for Redis"),
        }
    }
}

impl Store {
    pub(super) fn new(plan: &Plan, broken: Broken) -> Store {
        let limits = Limits { max_matches: 100, max_outputs: plan.max_outputs, page: plan.page };
        let updates = plan.update_interval.is_some();
        let source = |part| Source::new(part, limits, plan.poisoned, updates);
        let sources = (0..plan.partitions).map(source).collect();
        let now = Stored { group: None, sources };
        Store {
            base: now.clone(),
            middle: None,
            calls: VecDeque::new(),
            now,
            broken,
            limits,
            page: (plan.page, plan.update_interval.unwrap_or(0)),
            updates,
            lost: vec![None; plan.partitions],
            before_flush: None,
            rules_gone: false,
            counted: BTreeMap::new(),
        }
    }

    pub(super) fn source(&self, part: usize) -> &Source {
        &self.now.sources[part]
    }

    pub(super) fn group_is_known(&self) -> bool {
        self.now.group.is_some()
    }

    /// Carries a call out. `topic`: the incarnation that there is now.
    pub(super) fn run(&mut self, call: Call, topic: usize) -> Event {
        if let Command::LookForRules = call.command {
            return Event::Rules(!self.rules_gone);
        }
        let (event, wrote) = self.now.carry_out(&call, topic, self.page, self.broken);
        if self.broken == Broken::RevisionIsACount {
            self.count_revisions(call.part);
        }
        if wrote {
            self.calls.push_back(call);
            if self.calls.len() == WRITES_LOST {
                self.middle = Some(self.now.clone());
            } else if self.calls.len() == 2 * WRITES_LOST {
                let middle = self.middle.replace(self.now.clone());
                self.base = middle.expect("set when half as many calls were there");
                self.calls.drain(..WRITES_LOST);
            }
        }
        event
    }

    fn count_revisions(&mut self, part: usize) {
        for (window, revisions) in &self.now.sources[part].revisions {
            for (count, revision) in (1..).zip(revisions) {
                self.counted.insert((part, *window, *revision), count);
            }
        }
    }

    /// How many writes it may lose.
    pub(super) fn writes(&self) -> usize {
        self.calls.len().min(WRITES_LOST)
    }

    /// Redis comes back as it was `back` writes ago. The partitions whose state changed with it.
    pub(super) fn roll_back(&mut self, back: usize) -> Vec<usize> {
        let keep = self.calls.len() - back.min(self.writes());
        let undone: Vec<usize> = self.calls.drain(keep..).map(|call| call.part).collect();
        let (mut stored, done) = match &self.middle {
            Some(middle) if keep >= WRITES_LOST => (middle.clone(), WRITES_LOST),
            _ => (self.base.clone(), 0),
        };
        for call in self.calls.iter().skip(done) {
            // No call of before the topic was made again is among them.
            let topic = self.now.sources[call.part].topic;
            stored.carry_out(call, topic, self.page, self.broken);
        }
        if keep < WRITES_LOST {
            self.middle = None;
        }
        for (part, source) in stored.sources.iter().enumerate() {
            if self.now.sources[part].claimed && !source.claimed {
                self.lost[part] = Some(self.now.sources[part].era(NOTHING_DELIVERED));
            }
        }
        self.now = stored;
        (0..self.now.sources.len()).filter(|part| undone.contains(part)).collect()
    }

    /// What was before does not come back: Redis that comes back older than a loss would be two disasters at once.
    pub(super) fn forget_the_past(&mut self) {
        self.base = self.now.clone();
        self.middle = None;
        self.calls.clear();
    }

    pub(super) fn flush(&mut self, poisoned: Option<usize>) {
        for (part, source) in self.now.sources.iter().enumerate() {
            if source.claimed {
                self.lost[part] = Some(source.era(NOTHING_DELIVERED));
            }
        }
        let (limits, updates) = (self.limits, self.updates);
        let source = |part| Source::new(part, limits, poisoned, updates);
        let sources = (0..self.now.sources.len()).map(source).collect();
        self.before_flush = Some(std::mem::replace(&mut self.now, Stored { group: None, sources }));
        self.forget_the_past();
    }

    /// The operator brings the data back, if nobody has begun anew.
    pub(super) fn bring_back(&mut self) -> bool {
        if self.now.sources.iter().any(|source| source.claimed) {
            return false;
        }
        let Some(stored) = self.before_flush.take() else { return false };
        self.now = stored;
        for (lost, source) in self.lost.iter_mut().zip(&self.now.sources) {
            if source.claimed {
                *lost = None; // what an earlier flush took is still lost
            }
        }
        self.rules_gone = false;
        self.forget_the_past();
        true
    }

    /// The era that ended when Redis lost a partition's state, once.
    pub(super) fn take_lost(&mut self, part: usize) -> Option<Era> {
        let lost = self.lost[part].take();
        if lost.is_some() {
            self.before_flush = None; // somebody has begun anew
        }
        lost
    }

    /// The era that the state of a partition is in, as if it ended with this delivered.
    pub(super) fn era(&self, part: usize, until: Position) -> Era {
        self.now.sources[part].era(until)
    }

    /// What the last claim of a partition named as delivered.
    pub(super) fn claimed_with(&self, part: usize) -> Position {
        self.now.sources[part].delivered.unwrap_or(NOTHING_DELIVERED)
    }
}
