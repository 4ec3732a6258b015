//! Redis and Kafka as a simulation needs them: the scripts on the reference of their semantics, behind their guard;
//! a committed position, transactions that fence, and everything that was ever sent.

use std::sync::Arc;

use tickwatch::domain::reference::{self, Limits, Reference, RuleOptions};
use tickwatch::domain::{Batch, Entry, Offset, OutboxId, Position, Trigger, Watermark};
use tickwatch::store::keys::encode_symbol;
use tickwatch::store::scripts::{
    Advanced, Applied, Beat, Claim, Claimed, Closed, Effects, Guard, Refusal, State, Token,
};
use tickwatch::worker::protocol::{Command, Event, Outgoing};

use super::log::SYMBOLS;
use super::oracle::{Key, RULES};
use super::{Broken, price_of};

/// Small bounds, so that pages and SPLIT happen.
const PAGE: usize = 2;
const MAX_OUTPUTS: usize = 3;
const OUTBOX_PAGE: usize = 3;

/// As far back as Redis comes back after a fault, in writes.
const SNAPSHOTS: usize = 12;

/// What Redis holds.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    claimed: bool,
    token: Option<Token>,
    epoch: u64,
    max_ts_at: u64,
    pub(super) state: Reference,
    /// Every rise of the watermark without ticks that this state has seen: the offset it was at, and the watermark.
    pub(super) advances: Vec<(i64, i64)>,
}

/// Redis, with the states it may come back to.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) now: Arc<Stored>,
    snapshots: Vec<Arc<Stored>>,
    broken: Broken,
}

impl Store {
    pub(super) fn new(broken: Broken) -> Store {
        let limits = Limits { max_matches: 100, max_outputs: MAX_OUTPUTS };
        let mut state = Reference::new(Offset(0), limits, encode_symbol);
        for symbol in SYMBOLS {
            let rules = &mut state.symbols.entry(symbol.into()).or_default().rules;
            for rule in RULES.iter().filter(|rule| rule.symbol == symbol) {
                let set = match (rule.edge, rule.op) {
                    (true, _) => &mut rules.edge,
                    (false, "=") => &mut rules.equal,
                    (false, "<") => &mut rules.below,
                    (false, _) => &mut rules.above,
                };
                set.insert(format!("{} {}", rule.op, rule.id), rule.threshold as f64);
                let options = RuleOptions { once: rule.once, cooldown: rule.cooldown, ..RuleOptions::default() };
                rules.options.insert(rule.id.to_owned(), Some(options));
            }
        }
        let now =
            Arc::new(Stored { claimed: false, token: None, epoch: 0, max_ts_at: 0, state, advances: Vec::new() });
        Store { snapshots: vec![Arc::clone(&now)], now, broken }
    }

    /// Redis comes back as it was `back` writes ago.
    pub(super) fn roll_back(&mut self, back: usize) {
        let left = self.snapshots.len() - back.min(self.snapshots.len() - 1);
        self.snapshots.truncate(left);
        self.now = Arc::clone(&self.snapshots[left - 1]);
    }

    fn written(&mut self) {
        if self.snapshots.len() == SNAPSHOTS {
            self.snapshots.remove(0);
        }
        self.snapshots.push(Arc::clone(&self.now));
    }

    fn next_due(&self) -> Option<i64> {
        self.now.state.due.first().map(|due| due.end)
    }

    fn tail(&self) -> OutboxId {
        self.now.state.tail.unwrap_or(OutboxId { offset: Offset(0), n: 0 })
    }

    fn refusal(&self, guard: &Guard) -> Option<Refusal> {
        if self.now.token.as_ref() != Some(&guard.token) && self.broken != Broken::GuardIgnoresTheToken {
            return Some(Refusal::Fenced);
        }
        let moved = (self.now.state.position != guard.position && self.broken != Broken::GuardIgnoresThePosition)
            || (self.tail() != guard.tail && self.broken != Broken::GuardIgnoresTheTail);
        moved.then_some(Refusal::Moved)
    }

    /// Runs the script that a command asks for, `now` ms into the simulation, all of it at once.
    pub(super) fn run(&mut self, now: u64, command: &Command) -> Event {
        match command {
            Command::LookForRules => Event::Rules(true),
            Command::Claim(claim) => self.claim(now, claim),
            Command::ReadOutbox(after) => {
                let entries = self.now.state.outbox.iter().filter(|entry| Some(entry.id) > *after);
                Event::Outbox(entries.take(OUTBOX_PAGE).cloned().collect())
            }
            Command::Apply(guard, batch, single) => Event::Applied(match self.refusal(guard) {
                Some(refusal) => Applied::Refused(refusal),
                None => self.apply(now, batch, *single),
            }),
            Command::Close(guard) => Event::Closed(match self.refusal(guard) {
                Some(refusal) => Closed::Refused(refusal),
                None => self.close(),
            }),
            Command::Advance(guard, to, grace) => Event::Advanced(match self.refusal(guard) {
                Some(refusal) => Advanced::Refused(refusal),
                None => self.advance(now, *to, *grace),
            }),
            Command::Heartbeat(guard, _) => Event::Beat(match self.refusal(guard) {
                Some(refusal) => Beat::Refused(refusal),
                None => Beat::Ok { outbox: 0, open_windows: 0 },
            }),
            Command::Trim(token, through) => {
                if self.now.token.as_ref() == Some(token) {
                    let beyond = u64::from(self.broken == Broken::TrimGoesOneTooFar);
                    let until = OutboxId { n: through.n + 1 + beyond, ..*through };
                    Arc::make_mut(&mut self.now).state.trim(until);
                    self.written();
                }
                Event::Trimmed
            }
            other => unreachable!("{other:?} is not for Redis"),
        }
    }

    fn claim(&mut self, now: u64, claim: &Claim) -> Event {
        assert!(!claim.reset, "no topic is made again here");
        if !self.now.claimed && claim.start.is_none() {
            return Event::Claimed(claim.token.clone(), Claimed::Absent);
        }
        let stored = Arc::make_mut(&mut self.now);
        if !stored.claimed {
            stored.claimed = true;
            stored.state.position.offset = claim.start.expect("absent without a start is answered above");
        }
        stored.epoch += 1;
        stored.token = Some(claim.token.clone());
        if let Some(delivered) = claim.delivered {
            stored.state.drop_delivered(delivered);
        }
        self.written();
        let (stored, tail) = (&self.now, self.tail());
        Event::Claimed(
            claim.token.clone(),
            Claimed::Ok(State {
                epoch: stored.epoch,
                position: stored.state.position,
                tail,
                max_ts: stored.state.max_ts,
                max_ts_age: (now - stored.max_ts_at) as i64,
                last_record: stored.state.last_record,
                fingerprint: claim.fingerprint.clone(),
                generation: 0,
                next_due: self.next_due(),
                outbox: stored.state.outbox.len() as u64,
                previous_owner: String::new(),
            }),
        )
    }

    fn apply(&mut self, now: u64, batch: &Batch, single: bool) -> Applied {
        let stored = Arc::make_mut(&mut self.now);
        let before = (stored.state.max_ts, stored.state.totals);
        let mut batch = batch.clone();
        if self.broken == Broken::GuardIgnoresThePosition {
            batch.from = stored.state.position.offset;
            batch.watermark_before = stored.state.position.watermark;
        }
        match stored.state.apply(&batch, single) {
            reference::Applied::Done(outputs) => {
                if stored.state.max_ts > before.0 {
                    stored.max_ts_at = now;
                }
                let totals = stored.state.totals;
                self.written();
                Applied::Ok(Effects {
                    outputs,
                    tail: self.tail(),
                    next_due: self.next_due(),
                    out_of_order: totals.out_of_order - before.1.out_of_order,
                    refused_matches: 0,
                    bad_rules: Vec::new(),
                    poisoned: Vec::new(),
                })
            }
            reference::Applied::Due => Applied::Due,
            reference::Applied::Split => Applied::Split,
            reference::Applied::Moved => {
                assert!(self.broken != Broken::Nothing, "the batch was built on another position than its guard");
                Applied::Refused(Refusal::Moved)
            }
        }
    }

    fn close(&mut self) -> Closed {
        let closed = Arc::make_mut(&mut self.now).state.close(PAGE);
        if !closed.entries.is_empty() {
            self.written();
        }
        Closed::Ok {
            more: closed.more,
            outputs: closed.entries,
            tail: self.tail(),
            next_due: self.next_due(),
            lost: Vec::new(),
        }
    }

    fn advance(&mut self, now: u64, to: Watermark, grace: Option<i64>) -> Advanced {
        let stored = Arc::make_mut(&mut self.now);
        let bound = grace
            .map(|grace| stored.state.max_ts.map_or(i64::MIN, |ts| ts + (now - stored.max_ts_at) as i64 - grace));
        let to = to.min(bound.map_or(to, Watermark::at));
        if to > stored.state.position.watermark {
            let raised = to.ms().expect("above another watermark");
            stored.advances.push((stored.state.position.offset.0, raised));
            stored.state.advance(to);
            self.written();
        }
        Advanced::Ok { watermark: self.now.state.position.watermark, next_due: self.next_due() }
    }
}

/// An output that reached Kafka.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) key: Key,
    pub(super) content: String,
}

impl Sent {
    pub(super) fn new(output: &Outgoing) -> Sent {
        match output {
            Outgoing::Entry(entry) => Sent::entry(entry),
            Outgoing::DeadLetter { offset, record, .. } => {
                let record = record.as_ref().expect("every record of a simulation's log can be read again");
                assert_eq!(record.record().offset, *offset, "a dead letter's bytes are its record's");
                Sent { key: Key::DeadLetter(offset.0), content: String::new() }
            }
        }
    }

    fn entry(entry: &Entry) -> Sent {
        use tickwatch::domain::Output;
        let offset = entry.id.offset.0;
        match &entry.output {
            Output::Notification(it) => {
                let trigger =
                    RULES.iter().any(|rule| rule.id == it.rule && rule.edge == (it.trigger == Trigger::Edge));
                assert!(trigger, "{it:?} is of another trigger");
                let previous = it.previous.map(price_of);
                Sent {
                    key: Key::Notification(offset, it.index, it.rule.clone()),
                    content: format!("{} {previous:?} {}", price_of(it.price), it.ts),
                }
            }
            Output::Candle(it) => Sent {
                key: Key::Candle(it.symbol.clone(), it.interval.ms(), it.start, it.revision),
                content: format!("{} {} {} {} {} {}", it.open, it.high, it.low, it.close, it.volume, it.count),
            },
            Output::Late(it) => Sent {
                key: Key::Late(offset, it.index),
                content: format!("{} {} {} {}", it.symbol, it.price, it.volume, it.ts),
            },
            Output::DeadLetter { .. } => unreachable!("a dead letter is sent with its record"),
        }
    }
}

/// What Kafka holds, but for the log.
#[derive(Debug, Default)]
pub(super) struct Kafka {
    pub(super) committed: Option<Position>,
    pub(super) sent: Vec<Sent>,
    /// The newest transactional producer.
    pub(super) producer: u64,
}

impl Kafka {
    pub(super) fn send(&mut self, outputs: &[Outgoing]) {
        self.sent.extend(outputs.iter().map(Sent::new));
    }
}
