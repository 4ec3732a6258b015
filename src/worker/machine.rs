//! The protocol of one source partition as a state machine without I/O: events in, commands out.
//!
//! `takeover.rs` gets it to [`Phase::Running`]; this file applies and closes, `committing.rs` delivers, `silence.rs`
//! lets time pass, `updating.rs` sends open candles, `trouble.rs` is for when something goes wrong. At most one guarded
//! script call is under way; deliveries run beside it, several segments at a time.

use std::sync::Arc;

use super::batching::{Bounds, Buffer, Built, RecordRef};
use super::committing::IDLE_COMMIT;
use super::delivery::{Deliveries, Prefix};
use super::protocol::{Command, Event, Failure, Hold, HoldState, Mono, Notice, Settings};
use super::silence::{ASK_AGAIN, Ask};
use super::takeover::Takeover;
use super::updating::Updates;
use crate::domain::{Chunk, Offset, OutboxId, Position, RecordMark, Watermark};
use crate::store::scripts::{Advanced, Applied, Beat, Closed, Effects, Guard, Token};

/// The state machine of one source partition.
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: Arc<Settings>,
    pub(super) phase: Phase,
    /// Counts takeovers: an answer to a command of an earlier one is ignored.
    pub(super) attempt: u64,
    pub(super) takeover: Takeover,
    pub(super) backoff: u64,
    pub(super) commands: Vec<Command>,
    pub(super) stopping: bool,
    pub(super) finished: bool,

    /// What this owner holds, once it has claimed.
    pub(super) guard: Option<Guard>,
    pub(super) generation: u64,
    pub(super) delivered: Position,
    pub(super) next_due: Option<i64>,
    pub(super) max_ts: Option<i64>,
    /// When `max_ts` was applied, on the machine's own clock.
    pub(super) max_ts_at: Mono,

    pub(super) buffer: Buffer,
    /// The reader's position at the end of the partition, until something new arrives.
    pub(super) reader_end: Option<Offset>,
    pub(super) last_record_at: Mono,
    /// Records below the state position are being read again.
    pub(super) rereading: bool,
    /// The last applied record, to be compared with the log.
    pub(super) verify: Option<RecordMark>,

    /// A guarded script call is under way.
    pub(super) calling: bool,
    pub(super) built: Option<Built>,
    /// Records in a batch at most: halved by SPLIT, doubled by success.
    pub(super) batch_records: usize,
    /// No window at or below the watermark is open.
    pub(super) sealed: bool,

    pub(super) deliveries: Deliveries,
    /// Complete and not yet committed.
    pub(super) candidate: Prefix,
    /// Being committed.
    pub(super) committing: Option<Prefix>,
    pub(super) last_commit: Mono,
    pub(super) trim: Option<OutboxId>,
    pub(super) trimming: bool,

    pub(super) updates: Updates,

    pub(super) ask: Ask,
    pub(super) last_beat: Mono,
    pub(super) hold: Hold,
}

/// Where a partition stands between assignment and release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not started.
    Idle,
    /// A takeover is under way.
    TakingOver,
    /// Waiting until this time, then asking whether the partition is still ours.
    BackingOff(Mono),
    /// Asking whether the partition is still ours.
    CheckingAssignment,
    /// Applying and delivering.
    Running,
    /// Nothing happens until somebody acts; the reason is in the text.
    Stopped(String),
    /// Given up.
    Released,
}

/// What a machine looks like from outside, for gauges and readiness.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The phase.
    pub phase: Phase,
    /// The state position, once claimed.
    pub position: Option<Position>,
    /// The delivered position.
    pub delivered: Position,
    /// Records read and not applied.
    pub buffered: usize,
    /// Outputs not delivered.
    pub undelivered: usize,
    /// What holds time back.
    pub hold: Hold,
    /// A bounded run has reached its end here.
    pub finished: bool,
}

impl Machine {
    /// A machine that waits for [`Event::Start`].
    pub fn new(settings: Arc<Settings>) -> Machine {
        Machine {
            batch_records: usize::MAX,
            settings,
            phase: Phase::Idle,
            attempt: 0,
            takeover: Takeover::default(),
            backoff: 0,
            commands: Vec::new(),
            stopping: false,
            finished: false,
            guard: None,
            generation: 0,
            delivered: Position::at(Offset(0), Watermark::NEVER),
            next_due: None,
            max_ts: None,
            max_ts_at: 0,
            buffer: Buffer::default(),
            reader_end: None,
            last_record_at: 0,
            rereading: false,
            verify: None,
            calling: false,
            built: None,
            sealed: false,
            deliveries: Deliveries::default(),
            candidate: Prefix::default(),
            committing: None,
            last_commit: 0,
            trim: None,
            trimming: false,
            updates: Updates::default(),
            ask: Ask::After(0),
            last_beat: 0,
            hold: Hold { state: HoldState::Lagging, reason: "being taken over".into() },
        }
    }

    /// The number of the present takeover; commands and their answers belong to one.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// What is to be done now, in order.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Where it stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether more records are wanted.
    pub fn wants_records(&self) -> bool {
        self.phase == Phase::Running && self.buffer.len() < self.settings.max_batch.saturating_mul(2)
    }

    /// What it looks like from outside.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            phase: self.phase.clone(),
            position: self.guard.as_ref().map(|guard| guard.position),
            delivered: self.delivered,
            buffered: self.buffer.len(),
            undelivered: self.undelivered(),
            hold: self.hold.clone(),
            finished: self.finished,
        }
    }

    /// Hears an event. `now` is the machine's own clock; `clock` the time of day, ms since the epoch. An answer that
    /// belongs to an earlier takeover is ignored.
    pub fn handle(&mut self, now: Mono, clock: i64, attempt: u64, event: Event) {
        match event {
            Event::Start => {
                if self.phase == Phase::Idle {
                    self.start_takeover();
                }
            }
            Event::Stop => self.stop_gracefully(),
            Event::Tick => self.wake(now),
            _ if attempt != self.attempt || self.phase == Phase::Released => return,
            Event::Failed(failure) => self.fail(now, failure),
            Event::Assigned(assigned) => self.assigned(assigned),
            event => self.answer(now, event),
        }
        if let Phase::BackingOff(until) = self.phase
            && now >= until
        {
            self.phase = Phase::CheckingAssignment;
            self.commands.push(Command::CheckAssigned);
        }
        self.run(now, clock);
    }

    fn answer(&mut self, now: Mono, event: Event) {
        match self.phase {
            Phase::TakingOver => return self.take_over(now, event),
            Phase::Running => {}
            _ => return,
        }
        match event {
            Event::Records(chunk) => self.receive(now, &chunk),
            Event::End(position) => self.reached_end(now, position),
            Event::OutOfRange => self.fail(
                now,
                Failure {
                    what: "read",
                    message: "the log no longer holds the next offset".into(),
                    transient: true,
                    fenced: false,
                    from_redis: false,
                },
            ),
            Event::Range { end, .. } => self.learn_end(now, end),
            Event::RangeUnknown(_) => self.ask = Ask::After(now + ASK_AGAIN),
            Event::Applied(reply) => self.applied(now, reply),
            Event::Closed(reply) => self.closed(now, reply),
            Event::Updated(reply) => self.updated(now, reply),
            Event::Advanced(reply) => self.advanced(now, reply),
            Event::Beat(reply) => {
                self.calling = false;
                if let Beat::Refused(refusal) = reply {
                    self.refused(now, refusal);
                }
            }
            Event::Sent(ticket) => self.deliveries.acknowledge(ticket),
            Event::CommitDone | Event::Transacted => self.committed(now),
            Event::Trimmed => self.trimming = false,
            _ => {}
        }
    }

    /// When it wants to hear [`Event::Tick`] at the latest.
    pub fn wake_at(&self, now: Mono) -> Mono {
        let beat = self.last_beat + self.settings.heartbeat;
        match self.phase {
            Phase::BackingOff(until) => until,
            Phase::Running if self.calling => now + self.settings.heartbeat,
            Phase::Running => {
                let ask = match (self.ask, self.silence_ends_at()) {
                    (Ask::After(at), Some(due)) => at.max(due),
                    _ => Mono::MAX,
                };
                let commit = match self.candidate.position {
                    Some(_) if self.committing.is_none() => self.last_commit + IDLE_COMMIT,
                    _ => Mono::MAX,
                };
                beat.min(ask).min(commit).min(self.update_at())
            }
            Phase::Stopped(_) => beat,
            _ => now + self.settings.heartbeat,
        }
        .max(now + 1)
    }

    /// A stopped partition goes on saying so.
    fn wake(&mut self, now: Mono) {
        if matches!(self.phase, Phase::Stopped(_))
            && let Some(guard) = &self.guard
            && now >= self.last_beat + self.settings.heartbeat
        {
            self.last_beat = now;
            self.commands.push(Command::Heartbeat(guard.clone(), self.hold.clone()));
        }
    }

    // ---- records

    fn receive(&mut self, now: Mono, chunk: &Arc<Chunk>) {
        self.reader_end = None;
        self.last_record_at = now;
        self.ask = Ask::After(0);
        let Some(position) = self.guard.as_ref().map(|guard| guard.position) else { return };
        let mut old = 0;
        if self.rereading {
            for index in 0..chunk.records.len() {
                let record = RecordRef { chunk: Arc::clone(chunk), index };
                if !self.verify(record.record().mark()) {
                    return;
                }
                if record.record().offset >= position.offset {
                    self.rereading = false;
                    break;
                }
                self.deliveries.reread(&record, self.delivered);
                old += 1;
            }
            if !self.rereading {
                self.deliveries.passed(position.offset);
            }
        }
        if old < chunk.records.len() {
            self.buffer.push(Arc::clone(chunk));
            self.buffer.consume(old);
        }
    }

    /// Compares a record with the last applied one. False: the topic was made again, and the partition stops.
    fn verify(&mut self, found: RecordMark) -> bool {
        match self.verify {
            Some(mark) if found.offset == mark.offset => {
                self.verify = None;
                if found != mark {
                    self.truncated(&format!(
                        "the record at offset {} is not the one that was applied: the topic was deleted and made again",
                        mark.offset
                    ));
                    return false;
                }
            }
            Some(mark) if found.offset > mark.offset => self.verify = None, // compacted away: nothing to compare
            _ => {}
        }
        true
    }

    fn reached_end(&mut self, now: Mono, end: Offset) {
        let Some(position) = self.guard.as_ref().map(|guard| guard.position) else { return };
        if self.reader_end != Some(end) {
            self.last_record_at = now;
        }
        self.reader_end = Some(end);
        if self.rereading && end >= position.offset {
            self.rereading = false;
            self.verify = None;
            self.deliveries.passed(position.offset);
        }
    }

    // ---- the next call

    fn run(&mut self, now: Mono, clock: i64) {
        if self.phase != Phase::Running {
            return;
        }
        self.deliver(now);
        if !self.calling {
            self.next_call(now, clock);
        }
        self.deliver(now);
        self.update_hold(now);
        if self.stopping && !self.calling {
            let delivered = self.sealed && self.deliveries.is_empty();
            if self.nothing_is_committed() && (delivered || self.leaves_updates(now)) {
                self.release();
            }
        }
    }

    fn nothing_in_flight(&self) -> bool {
        self.deliveries.is_empty() && self.nothing_is_committed()
    }

    fn nothing_is_committed(&self) -> bool {
        self.committing.is_none() && self.candidate.position.is_none() && self.trim.is_none() && !self.trimming
    }

    fn next_call(&mut self, now: Mono, clock: i64) {
        let Some(guard) = self.guard.clone() else { return };
        let position = guard.position;
        if !self.sealed {
            if self.next_due.is_some_and(|due| position.watermark.passes(due)) {
                return self.call(Command::Close(guard));
            }
            if !self.holds_updates(position) {
                self.sealed = true;
                self.deliveries.seal(self.sealing_position(position));
            }
        }
        // Reached, or passed: a state that was lost begins anew behind it if the log's head is gone.
        if position.offset >= self.delivered.offset && self.delivered.watermark > position.watermark {
            return self.call(Command::Advance(guard, self.delivered.watermark, None));
        }
        if self.stopping {
            if self.update_is_due(now, position, true) {
                self.ask_for_update(guard);
            }
            return;
        }
        if now >= self.last_beat + self.settings.heartbeat {
            self.last_beat = now;
            return self.call(Command::Heartbeat(guard, self.hold.clone()));
        }
        if self.finished {
            return;
        }
        if self.update_is_due(now, position, false) {
            return self.ask_for_update(guard);
        }
        let full = self.undelivered() >= self.settings.max_undelivered;
        if !full && let Some(built) = self.next_batch(position, clock) {
            let single = built.records <= 1;
            let batch = Arc::clone(&built.batch);
            self.built = Some(built);
            return self.call(Command::Apply(guard, batch, single));
        }
        if self.update_is_due(now, position, true) {
            return self.ask_for_update(guard);
        }
        if full {
            return;
        }
        if self.settings.batch.block_bad_records
            && let Some(front) = self.buffer.front()
            && let Some(bad) = &front.record().bad
        {
            let reason = format!(
                "offset {}: {}; mend the producer and skip the record, or set [recovery] bad_records = \"dead_letter\"",
                front.record().offset,
                bad.reason
            );
            return self.stop("bad_record", reason);
        }
        if let Some(end) = self.settings.stop_at
            && position.offset >= end
        {
            return self.finish(&guard);
        }
        self.let_time_pass(now, guard);
    }

    pub(super) fn call(&mut self, command: Command) {
        self.calling = true;
        self.commands.push(command);
    }

    fn next_batch(&self, position: Position, clock: i64) -> Option<Built> {
        if self.rereading {
            return None;
        }
        let behind = (position.offset < self.delivered.offset).then_some(self.delivered.offset);
        let until = match (behind, self.settings.stop_at) {
            (Some(a), Some(b)) if position.offset < b => Some(a.min(b)),
            (None, Some(b)) => Some(b),
            (behind, _) => behind,
        };
        let bounds = Bounds {
            ticks: self.settings.max_batch,
            symbols: self.settings.max_symbols,
            records: self.batch_records,
            until,
            clock,
        };
        self.buffer.next_batch(&self.settings.batch, position, self.reader_end, bounds)
    }

    /// The end of a bounded run: closes everything, then waits until it is delivered.
    fn finish(&mut self, guard: &Guard) {
        let ends = self.max_ts.map(|ts| self.settings.batch.intervals.iter().map(move |i| i.window_of(ts).end));
        if let Some(last) = ends.and_then(Iterator::max)
            && !guard.position.watermark.passes(last)
        {
            return self.call(Command::Advance(guard.clone(), Watermark::at(last), None));
        }
        if self.nothing_in_flight() {
            self.finished = true;
            self.commands.push(Command::Tell(Notice::Finished));
        }
    }

    // ---- answers

    fn applied(&mut self, now: Mono, reply: Applied) {
        self.calling = false;
        let Some(built) = self.built.take() else { return };
        match reply {
            Applied::Ok(effects) => self.take_effects(now, &built, effects),
            Applied::Refused(refusal) => self.refused(now, refusal),
            Applied::Due => {
                self.next_due = Some(i64::MIN);
                self.unseal();
            }
            Applied::Split => {
                self.batch_records = (built.records / 2).max(1);
                self.commands.push(Command::Tell(Notice::Split));
            }
        }
    }

    fn take_effects(&mut self, now: Mono, built: &Built, effects: Effects) {
        let Some(guard) = &mut self.guard else { return };
        let batch = Arc::clone(&built.batch);
        guard.position = Position::at(batch.to, batch.watermark_after);
        guard.tail = effects.tail;
        self.next_due = effects.next_due;
        if batch.max_ts > self.max_ts {
            (self.max_ts, self.max_ts_at) = (batch.max_ts, now);
        }
        self.buffer.consume(built.records);
        self.batch_records = self.batch_records.saturating_mul(2);
        self.backoff = 0;
        self.note_change();
        self.unseal();
        self.deliveries.add_entries(effects.outputs, self.delivered, |offset| built.find(offset));
        for record in &built.bad {
            self.deliveries.add_bad_record(record.clone(), self.delivered);
        }
        self.commands.push(Command::Tell(Notice::Applied {
            batch,
            future: built.future,
            out_of_order: effects.out_of_order,
            refused_matches: effects.refused_matches,
            bad_rules: effects.bad_rules,
            poisoned: effects.poisoned,
        }));
        self.tell_lost(effects.lost);
    }

    fn tell_lost(&mut self, candles: Vec<String>) {
        if !candles.is_empty() {
            self.commands.push(Command::Tell(Notice::LostCandles(candles)));
        }
    }

    fn closed(&mut self, now: Mono, reply: Closed) {
        self.calling = false;
        match reply {
            Closed::Ok { outputs, tail, next_due, lost, more: _ } => {
                if let Some(guard) = &mut self.guard {
                    guard.tail = tail;
                }
                self.next_due = next_due;
                self.look_again_for_updates();
                self.deliveries.add_entries(outputs, self.delivered, |_| None);
                self.tell_lost(lost);
            }
            Closed::Refused(refusal) => self.refused(now, refusal),
        }
    }

    fn advanced(&mut self, now: Mono, reply: Advanced) {
        self.calling = false;
        match reply {
            Advanced::Ok { watermark, next_due } => {
                self.next_due = next_due;
                let Some(guard) = &mut self.guard else { return };
                if watermark > guard.position.watermark {
                    guard.position.watermark = watermark;
                    self.unseal();
                }
            }
            Advanced::Refused(refusal) => self.refused(now, refusal),
        }
    }

    /// A segment begins: it is complete once no window at or below its watermark is open.
    pub(super) fn unseal(&mut self) {
        if self.sealed {
            self.deliveries.begin(None);
            self.sealed = false;
        }
    }

    /// Enters the running phase after a takeover.
    pub(super) fn enter_running(&mut self, now: Mono, token: Token, position: Position, tail: OutboxId) {
        self.phase = Phase::Running;
        self.guard = Some(Guard { token, position, tail });
        self.last_commit = now;
        self.last_beat = now;
        self.last_record_at = now;
    }
}
